"""Contract tests of EnvironmentService over real gRPC, with environments in real processes."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.reward.allowed import Allowed
from shoal.config.environments import BUILT_IN_ENVIRONMENTS
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, FailedPrecondition, InvalidArgument, ResourceExhausted
from shoal.v1 import reward_pb2, rollout_pb2, worker_pb2
from tests.support.environment_client import RewardStage, Stage, staged, staged_with_rewards, turn
from tests.support.repository import ROOT
from tests.support.waiting import eventually

CALCULATOR = {"name": "calculator"}
SCORED, FAILED = rollout_pb2.SCORE_OUTCOME_SCORED, rollout_pb2.SCORE_OUTCOME_FAILED

SCRIPTED = '''
import asyncio, os, subprocess, sys, time
from shoal.environment import Environment, InvalidTask, Observation, Unscorable

class Scripted(Environment):
    """Does what the turns say."""

    is_deterministic = DETERMINISTIC

    def reset(self, task, seed):
        if task.get("bad"):
            raise InvalidTask("it is bad")
        self.heard = []
        self.fresh = str(os.getpid()) if task.get("tells_pid") else ""
        return f"seed {seed} {self.fresh}".strip()

    def step(self, turn):
        self.heard.append(turn.text)
        self.metrics["turns"] = len(self.heard)
        verb, _, rest = turn.text.partition(" ")
        if verb == "hang":
            time.sleep(3600)
        if verb == "wait":
            return self.wait()
        if verb == "nap":
            return self.nap()
        if verb == "raise":
            raise ValueError("the dice are gone")
        if verb == "die" and not os.path.exists(rest):
            open(rest, "w").close()
            os._exit(3)
        if verb == "always_die":
            os._exit(3)
        if verb == "print":
            for _ in range(int(rest)):
                print("x" * 1000)
        if verb == "big":
            return "a" * int(rest) + "z"
        if verb == "nonsense":
            return object()
        if verb == "unscorable":
            raise Unscorable("no answer is known")
        if verb == "leave":
            subprocess.Popen(["sleep", "3600"], start_new_session=True)
        if verb == "done":
            self.reward, self.detail = 1.5, "finished"
            return Observation(reward=0.5, done=True)
        return Observation(",".join(self.heard), reward=float(len(self.heard)))

    async def wait(self):
        await asyncio.sleep(3600)

    async def nap(self):
        await asyncio.sleep(0.5)
        return ",".join(self.heard)
'''


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage


@pytest.fixture
async def reward() -> AsyncIterator[RewardStage]:
    async with staged_with_rewards() as stage:
        yield stage


@pytest.fixture
def scripted(tmp_path: Path) -> dict[str, Any]:
    """An environment that does what it is told, deterministic."""
    file = tmp_path / "scripted.py"
    file.write_text(SCRIPTED.replace("DETERMINISTIC", "True"))
    return {"name": "scripted", "source": f"{file}:Scripted"}


@pytest.fixture
def forgetful(tmp_path: Path) -> dict[str, Any]:
    """The same, not deterministic."""
    file = tmp_path / "forgetful.py"
    file.write_text(SCRIPTED.replace("DETERMINISTIC", "False"))
    return {"name": "forgetful", "source": f"{file}:Scripted"}


def pids(stage: Stage) -> list[int]:
    return list(stage.service.pids)


async def test_the_calculator_pays_for_the_right_call_and_then_for_the_result(stage: Stage) -> None:
    await stage.configure(CALCULATOR)
    player = stage.play("calculator", {"a": 12, "b": 34})
    assert not (await player.observe()).messages, "the prompt asks"
    answer = await player.say("I write <calc>12*34</calc>")
    assert [(message.role, message.content) for message in answer.messages] == [("user", "Result: 408")]
    assert (answer.reward, answer.done) == (0.2, False)
    last = await player.say("408")
    assert (last.reward, last.done) == (0.8, True)
    result = await player.result()
    assert (result.outcome, dict(result.metrics)) == (SCORED, {"called": 1.0, "right_call": 1.0, "solved": 1.0})


async def test_environments_are_listed_with_tools_and_digests(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text(
        'def add(a: int, b: int) -> int:\n    """Add two numbers.\n\n    Args:\n        a: one\n    """\n'
        "    return a + b\n\nTOOLS = [add]\n"
    )
    await stage.configure(CALCULATOR, {"name": "sums", "source": f"{file}:TOOLS"})
    listed = await stage.listed()
    assert list(listed) == ["calculator", "sums"]
    assert (listed["calculator"].is_deterministic, listed["calculator"].code_digest) == (True, "")
    [tool] = listed["sums"].tools
    assert (tool.name, tool.description, len(listed["sums"].code_digest)) == ("add", "Add two numbers.", 64)
    assert tool.parameters["properties"]["a"]["description"] == "one"


async def test_a_service_that_is_not_configured_plays_nothing(reward: RewardStage) -> None:
    with pytest.raises(FailedPrecondition, match="IDLE"):
        await reward.listed()
    with pytest.raises(FailedPrecondition, match="IDLE"):
        await reward.play("calculator").observe()


@pytest.mark.parametrize(
    ("environment", "task", "fields", "says"),
    [
        ("nothing", {}, {}, "no environment 'nothing'; configured: forgetful, scripted"),
        ("scripted", {"bad": True}, {}, "it is bad"),
        ("scripted", {}, {"seed": -1}, "start.seed"),
        ("scripted", {}, {"call_timeout_s": float("nan")}, "start.call_timeout_s"),
        ("scripted", {}, {"replay": [turn(2)]}, "turn.number"),
        ("forgetful", {}, {"replay": [turn(1)]}, "not deterministic"),
    ],
)
async def test_a_start_that_cannot_be_played_is_refused_with_its_field(
    stage: Stage,
    scripted: dict[str, Any],
    forgetful: dict[str, Any],
    environment: str,
    task: dict[str, Any],
    fields: dict[str, Any],
    says: str,
) -> None:
    await stage.configure(scripted, forgetful)
    with pytest.raises(InvalidArgument, match=says):
        await stage.play(environment, task, **fields).observe()


async def test_an_episode_that_the_caller_ends_has_a_result(stage: Stage, scripted: dict[str, Any]) -> None:
    await stage.configure(scripted)
    player = stage.play("scripted", seed=7)
    assert [message.content for message in (await player.observe()).messages] == ["seed 7"]
    await player.say("a")
    player.end()
    result = await player.result()
    assert (result.outcome, result.HasField("reward"), dict(result.metrics)) == (SCORED, False, {"turns": 1.0})


async def test_reward_detail_and_metrics_of_an_episode_are_read_at_its_end(
    stage: Stage, scripted: dict[str, Any]
) -> None:
    await stage.configure(scripted)
    player = stage.play("scripted")
    await player.observe()
    assert (await player.say("done")).reward == 0.5
    result = await player.result()
    assert (result.reward, result.detail) == (1.5, "finished")


async def test_a_replayed_episode_is_where_it_was(stage: Stage, scripted: dict[str, Any]) -> None:
    await stage.configure(scripted)
    player = stage.play("scripted", replay=[turn(1, "a"), turn(2, "b")])
    observation = await player.observe()
    assert (observation.turn, observation.messages[0].content) == (2, "a,b")
    assert (await player.say("c")).messages[0].content == "a,b,c"


async def test_an_exception_fails_the_episode_with_a_line_and_the_traceback_is_in_the_log(
    stage: Stage, scripted: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    await stage.configure(scripted)
    player = stage.play("scripted")
    await player.observe()
    player.send("raise")
    result = await player.result()
    assert result.outcome == FAILED
    assert result.detail.startswith("ValueError at ") and result.detail.endswith("the dice are gone"), result.detail
    assert "Traceback" not in result.detail
    assert any("Traceback" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("text", "outcome", "says"),
    [
        ("nonsense", FAILED, "was returned"),
        ("unscorable", rollout_pb2.SCORE_OUTCOME_UNSCORABLE, "no answer is known"),
        ("always_die", FAILED, "died 3 times in turn 1"),
    ],
)
async def test_what_breaks_inside_is_an_outcome(
    stage: Stage, scripted: dict[str, Any], text: str, outcome: int, says: str
) -> None:
    await stage.configure(scripted)
    player = stage.play("scripted")
    await player.observe()
    player.send(text)
    result = await player.result()
    assert (result.outcome, says in result.detail) == (outcome, True), result.detail


@pytest.mark.parametrize("verb", ["hang", "wait"])
async def test_a_call_that_hangs_fails_its_episode_and_the_others_of_its_process_go_on(
    stage: Stage, scripted: dict[str, Any], verb: str
) -> None:
    await stage.configure(scripted)
    other = stage.play("scripted")
    await other.observe()
    await other.say("a")
    hanging = stage.play("scripted", call_timeout_s=0.2)
    await hanging.observe()
    [pid] = pids(stage)
    hanging.send(verb)
    result = await hanging.result()
    assert (result.outcome, result.detail) == (FAILED, "step took longer than 0.2 s")
    assert (await other.say("b")).messages[0].content == "a,b"
    assert (pid in pids(stage)) == (verb == "wait"), "only what computes costs its process"


async def test_an_episode_whose_process_is_killed_goes_on_by_replay(stage: Stage, scripted: dict[str, Any]) -> None:
    await stage.configure(scripted)
    player = stage.play("scripted", seed=3)
    await player.observe()
    await player.say("a")
    [pid] = pids(stage)
    os.kill(pid, signal.SIGKILL)
    assert (await player.say("b")).messages[0].content == "a,b"
    assert pid not in pids(stage)


async def test_a_turn_whose_process_dies_in_it_is_played_again(
    stage: Stage, scripted: dict[str, Any], tmp_path: Path
) -> None:
    await stage.configure(scripted)
    player = stage.play("scripted")
    await player.observe()
    await player.say("a")
    text = f"die {tmp_path}/died"
    assert (await player.say(text)).messages[0].content == f"a,{text}"


async def test_kills_of_many_turns_of_one_episode_do_not_blame_it(
    stage: Stage, scripted: dict[str, Any], tmp_path: Path
) -> None:
    await stage.configure(scripted)
    player = stage.play("scripted")
    await player.observe()
    texts = [f"die {tmp_path}/{number}" for number in range(4)]
    for number, text in enumerate(texts, start=1):
        assert (await player.say(text)).messages[0].content == ",".join(texts[:number])


async def test_an_episode_that_kills_its_process_fails_alone(stage: Stage, scripted: dict[str, Any]) -> None:
    await stage.configure(scripted)
    killing, innocent = stage.play("scripted"), stage.play("scripted")
    await killing.observe()
    await innocent.observe()
    innocent.send("nap")
    killing.send("always_die")
    result = await killing.result()
    assert result.outcome == FAILED and "died 3 times in turn 1" in result.detail, result.detail
    assert (await innocent.observe()).messages[0].content == "nap", "it slept in the process that the other one killed"
    innocent.end()
    assert (await innocent.result()).outcome == SCORED


async def test_an_episode_that_is_not_deterministic_is_aborted_with_its_process(
    stage: Stage, forgetful: dict[str, Any]
) -> None:
    await stage.configure(forgetful)
    player = stage.play("forgetful")
    await player.observe()
    os.kill(pids(stage)[0], signal.SIGKILL)
    with pytest.raises(Aborted, match="begin it again"):
        await player.say("a")


async def test_a_replay_that_differs_fails_the_episode(stage: Stage, scripted: dict[str, Any]) -> None:
    await stage.configure(scripted)
    player = stage.play("scripted", {"tells_pid": True})
    await player.observe()
    os.kill(pids(stage)[0], signal.SIGKILL)
    player.send("a")
    result = await player.result()
    assert result.outcome == FAILED and "is_deterministic" in result.detail, result.detail


async def test_a_long_observation_is_cut_in_its_middle_with_a_note(stage: Stage, scripted: dict[str, Any]) -> None:
    await stage.configure(scripted | {"max_observation_chars": 1000})
    player = stage.play("scripted")
    await player.observe()
    said = (await player.say("big 2000000")).messages[0].content
    assert len(said) < 1100 and said.startswith("aaa") and said.endswith("z"), said
    assert "[1999001 characters are left out here]" in said


async def test_a_flood_of_output_keeps_no_other_episode_waiting(
    stage: Stage, scripted: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    await stage.configure(scripted | {"episodes_per_process": 1})
    flooding = stage.play("scripted", call_timeout_s=1.0)
    await flooding.observe()
    flooding.send("print 1000000")
    other = stage.play("scripted")
    await other.observe()
    assert (await other.say("a")).messages[0].content == "a"
    assert (await flooding.result()).outcome == FAILED
    printed = [record for record in caplog.records if "xxx" in record.message]
    assert len(printed) < 2000, f"{len(printed)} lines of a flood are in the log"


async def test_processes_that_an_environment_leaves_behind_end_with_its_episodes(
    stage: Stage, scripted: dict[str, Any]
) -> None:
    await stage.configure(scripted)
    player = stage.play("scripted")
    await player.observe()
    await player.say("leave")
    [pid] = pids(stage)
    [child] = psutil.Process(pid).children()
    player.end()
    await player.result()

    async def is_gone() -> bool:
        return not child.is_running() or child.status() == psutil.STATUS_ZOMBIE

    await eventually(is_gone)


async def test_a_stream_that_ends_early_frees_its_episode(stage: Stage, scripted: dict[str, Any]) -> None:
    await stage.configure(scripted | {"max_episodes": 1})
    player = stage.play("scripted")
    await player.observe()
    player.send("wait")
    refused = stage.play("scripted")
    with pytest.raises(ResourceExhausted, match="max_episodes") as raised:
        await refused.observe()
    assert raised.value.retry_after_s is not None and raised.value.reason == ErrorReason.QUEUE_FULL
    player.call.cancel()

    async def is_free() -> bool:
        return stage.service.num_open == 0

    await eventually(is_free)
    assert (await stage.play("scripted").observe()).messages


async def test_with_one_episode_a_process_each_has_a_new_one(stage: Stage, scripted: dict[str, Any]) -> None:
    await stage.configure(scripted | {"episodes_per_process": 1})
    seen = set()
    for _ in range(2):
        player = stage.play("scripted", {"tells_pid": True})
        seen.add((await player.observe()).messages[0].content)
        player.end()
        await player.result()
    assert len(seen) == 2, f"two episodes shared a process: {seen}"


async def test_a_leaving_service_finishes_its_episodes_and_begins_no_other(
    reward: RewardStage, scripted: dict[str, Any]
) -> None:
    await reward.configure(scripted)
    player = reward.play("scripted")
    await player.observe()
    leaving = asyncio.create_task(reward.reward.drain(60.0))

    async def is_leaving() -> bool:
        return reward.reward.status().state == worker_pb2.WORKER_STATE_LEAVING

    await eventually(is_leaving)
    with pytest.raises(Aborted) as raised:
        await reward.play("scripted").observe()
    assert raised.value.reason == ErrorReason.SHUTTING_DOWN
    assert not leaving.done(), "it left with an open episode"
    assert (await player.say("a")).messages
    player.end()
    await player.result()
    await leaving


async def test_an_episode_that_is_open_at_the_end_of_the_grace_period_is_handed_back(
    reward: RewardStage, scripted: dict[str, Any]
) -> None:
    await reward.configure(scripted)
    player = reward.play("scripted")
    await player.observe()
    await reward.reward.drain(0.01)
    with pytest.raises(Aborted) as raised:
        await player.say("a")
    assert raised.value.reason == ErrorReason.SHUTTING_DOWN


async def test_code_is_read_again_for_the_episodes_that_begin_then(
    reward: RewardStage, scripted: dict[str, Any]
) -> None:
    await reward.configure(scripted)
    old = reward.play("scripted")
    await old.observe()
    before = (await reward.listed())["scripted"].code_digest
    file = Path(scripted["source"].partition(":")[0])
    file.write_text(file.read_text().replace("seed {seed}", "SEED {seed}"))
    await reward.reward_stub.ReloadVerifiers(reward_pb2.ReloadVerifiersRequest(), timeout=60)
    assert (await reward.play("scripted").observe()).messages[0].content == "SEED 0"
    assert (await old.say("a")).messages[0].content == "a"
    assert (await reward.listed())["scripted"].code_digest != before


async def test_an_environment_that_cannot_be_loaded_fails_the_service_with_its_name(
    reward: RewardStage, tmp_path: Path
) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import no_such_module\n")
    await reward.configure({"name": "broken", "source": f"{file}:Game"})
    status = reward.reward.status()
    assert status.state == worker_pb2.WORKER_STATE_FAILED
    assert "environments.broken.source" in status.message and "no_such_module" in status.message, status.message


async def test_code_that_is_not_allowed_is_refused(scripted: dict[str, Any]) -> None:
    async with staged_with_rewards(Allowed()) as stage:
        with pytest.raises(FailedPrecondition, match=r"environments\.scripted\.source") as raised:
            await stage.configure(scripted)
        assert raised.value.reason == ErrorReason.NOT_ALLOWED
        with pytest.raises(FailedPrecondition, match=r"environments\.calculator\.interpreter: /usr/bin/env"):
            await stage.configure(CALCULATOR | {"interpreter": "/usr/bin/env"})


async def test_an_environment_of_another_server_is_played_there(scripted: dict[str, Any]) -> None:
    async with staged() as other, staged() as stage:
        await other.configure(scripted)
        await stage.configure({"name": "scripted", "server": other.address})
        assert (await stage.listed())["scripted"].is_deterministic
        player = stage.play("scripted", seed=5)
        assert (await player.observe()).messages[0].content == "seed 5"
        assert (await player.say("a")).messages[0].content == "a"
        player.end()
        assert (await player.result()).outcome == SCORED


async def test_the_end_of_another_server_aborts_its_episodes(scripted: dict[str, Any]) -> None:
    async with staged() as stage:
        async with staged() as other:
            await other.configure(scripted)
            await stage.configure({"name": "scripted", "server": other.address})
            player = stage.play("scripted")
            await player.observe()
        with pytest.raises(Aborted, match=r"environments\.scripted\.server"):
            await player.say("a")


async def test_what_comes_with_shoal_is_listed_with_its_tools(stage: Stage) -> None:
    address = {"base_url": "http://127.0.0.1:9"}
    settings = {"browse": address, "search": address, "toolbox": {"tools": [{"source": "search", **address}]}}
    # Their servers have to be there: tests/contract/test_environment_tools.py and test_openenv.py have them.
    names = sorted(BUILT_IN_ENVIRONMENTS - {"mcp", "openenv"})
    await stage.configure(*({"name": name, "settings": settings.get(name, {})} for name in names))
    listed = await stage.listed()
    assert {name: [tool.name for tool in info.tools] for name, info in listed.items()} == {
        "browse": ["browse"],
        "calculator": [],
        "counter": ["increment", "decrement", "submit"],
        "guess_number": ["guess"],
        "python": ["python"],
        "reasoning_gym": [],
        "sandbox": ["execute_bash", "str_replace_editor"],
        "search": ["search"],
        "textarena": [],
        "toolbox": ["search"],
        "verifiers": [],
        "wordle": [],
    }
    assert all(info.description and not info.code_digest for info in listed.values())
    assert bool(listed["python"].unavailable) == (shutil.which("bwrap") is None)


async def test_new_code_of_a_watched_file_is_taken_and_code_that_does_not_work_is_not(
    stage: Stage, scripted: dict[str, Any]
) -> None:
    await stage.configure(scripted | {"reload": True})
    file = Path(scripted["source"].partition(":")[0])
    first = file.read_text()

    async def says(text: str) -> bool:
        player = stage.play("scripted")
        said = (await player.observe()).messages[0].content
        player.end()
        await player.result()
        return said == text

    file.write_text(first.replace("seed {seed}", "SEED {seed}"))
    await eventually(lambda: says("SEED 0"))
    file.write_text("import no_such_module\n")

    async def is_reported() -> bool:
        return "no_such_module" in stage.service.notice

    await eventually(is_reported)
    assert await says("SEED 0"), "code that does not work is used"
    file.write_text(first.replace("seed {seed}", "third {seed}"))
    await eventually(lambda: says("third 0"))
    assert not stage.service.notice


OTHER_PYTHONS = [
    path for path in ("/usr/bin/python3.13", "/usr/bin/python3.12", "/usr/bin/python3.11") if os.path.exists(path)
]

MODULES = '''
import sys
from shoal.environment import Environment

class Modules(Environment):
    """Says what is loaded."""

    is_deterministic = True

    def reset(self, task, seed):
        loaded = sorted(name for name in sys.modules if name in ("grpc", "google", "pydantic", "numpy", "psutil"))
        return f"{sys.executable} {loaded} {[path for path in sys.path if path.startswith(task['root'])]}"
'''


@pytest.mark.skipif(not OTHER_PYTHONS, reason="needs another Python, 3.11 or later")
async def test_another_interpreter_needs_the_standard_library_alone(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "modules.py"
    file.write_text(MODULES)
    await stage.configure({"name": "modules", "source": f"{file}:Modules", "interpreter": OTHER_PYTHONS[0]})
    said = (await stage.play("modules", {"root": str(ROOT)}).observe()).messages[0].content
    assert said == f"{OTHER_PYTHONS[0]} [] []", "it runs with packages of ours, or finds our folder on its path"


async def test_an_interpreter_that_does_not_exist_is_reported(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"environments\.calculator\.source: /no/python cannot be started"):
        await stage.configure(CALCULATOR | {"interpreter": "/no/python"})


async def test_a_process_that_left_its_group_ends_with_the_process_that_started_it(
    stage: Stage, scripted: dict[str, Any]
) -> None:
    await stage.configure(scripted)
    player = stage.play("scripted")
    await player.observe()
    await player.say("leave")
    [pid] = pids(stage)
    [child] = psutil.Process(pid).children()
    assert os.getpgid(child.pid) != os.getpgid(pid), "the test is about a process with a session of its own"
    os.kill(pid, signal.SIGKILL)

    async def is_gone() -> bool:
        return not child.is_running() or child.status() == psutil.STATUS_ZOMBIE

    await eventually(is_gone)


async def test_processes_that_die_as_they_start_cost_no_episode(
    stage: Stage, scripted: dict[str, Any], tmp_path: Path
) -> None:
    file, deaths = Path(scripted["source"].partition(":")[0]), tmp_path / "deaths"
    file.write_text(
        f"import os\nif len(os.listdir({str(deaths)!r})) < 3:\n"
        f"    open(os.path.join({str(deaths)!r}, str(os.getpid())), 'w').close()\n    os._exit(9)\n" + file.read_text()
    )
    deaths.mkdir()
    for name in "abc":
        (deaths / name).touch()
    await stage.configure(scripted)
    player = stage.play("scripted")
    await player.observe()
    for name in "abc":
        (deaths / name).unlink()
    os.kill(pids(stage)[0], signal.SIGKILL)
    assert (await player.say("a")).messages[0].content == "a"
    assert len(list(deaths.iterdir())) == 3, "the test is about three deaths"
