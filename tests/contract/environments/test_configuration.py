"""What a service plays: its list, the code that it reads, other servers and interpreters, and its end."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from services.reward.allowed import Allowed
from shoal.config.tables.environments import BUILT_IN_ENVIRONMENTS
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, FailedPrecondition, InvalidArgument
from shoal.v1 import reward_pb2, rollout_pb2, worker_pb2
from tests.support.environment_client import RewardStage, Stage, staged, staged_with_rewards
from tests.support.repository import ROOT
from tests.support.waiting import eventually

CALCULATOR = {"name": "calculator"}
SCORED, FAILED = rollout_pb2.SCORE_OUTCOME_SCORED, rollout_pb2.SCORE_OUTCOME_FAILED


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


async def test_a_leaving_service_finishes_its_episodes_and_begins_no_other(
    reward: RewardStage, scripted: dict[str, Any]
) -> None:
    await reward.configure(scripted)
    player = await reward.begin("scripted")
    leaving = asyncio.create_task(reward.reward.drain(60.0))

    async def is_leaving() -> bool:
        return reward.reward.status().state == worker_pb2.WORKER_STATE_LEAVING

    await eventually(is_leaving)
    with pytest.raises(Aborted) as raised:
        await reward.play("scripted").observe()
    assert raised.value.reason == ErrorReason.SHUTTING_DOWN
    assert not leaving.done(), "it left with an open episode"
    assert (await player.say("a")).messages
    await player.finish()
    await leaving


async def test_an_episode_that_is_open_at_the_end_of_the_grace_period_is_handed_back(
    reward: RewardStage, scripted: dict[str, Any]
) -> None:
    await reward.configure(scripted)
    player = await reward.begin("scripted")
    await reward.reward.drain(0.01)
    with pytest.raises(Aborted) as raised:
        await player.say("a")
    assert raised.value.reason == ErrorReason.SHUTTING_DOWN


async def test_code_is_read_again_for_the_episodes_that_begin_then(
    reward: RewardStage, scripted: dict[str, Any]
) -> None:
    await reward.configure(scripted)
    old = await reward.begin("scripted")
    before = (await reward.listed())["scripted"].code_digest
    file = Path(scripted["source"].partition(":")[0])
    file.write_text(file.read_text().replace("seed {seed}", "SEED {seed}"))
    await reward.reward_stub.ReloadVerifiers(reward_pb2.ReloadVerifiersRequest(), timeout=60)
    assert (await reward.play("scripted").observe()).messages[0].content == "SEED 0"
    assert (await old.say("a")).messages[0].content == "a"
    assert (await reward.listed())["scripted"].code_digest != before


async def test_code_without_a_tool_that_prompts_show_is_taken_by_a_new_attempt_alone(
    reward: RewardStage, scripted: dict[str, Any]
) -> None:
    await reward.configure(scripted)
    file = Path(scripted["source"].partition(":")[0])
    first = file.read_text()

    async def tools_after(source: str, *, keeps_tools: bool) -> list[str]:
        file.write_text(source)
        request = reward_pb2.ReloadVerifiersRequest(keeps_tools=keeps_tools)
        await reward.reward_stub.ReloadVerifiers(request, timeout=60)
        return [tool.name for tool in (await reward.listed())["scripted"].tools]

    for lost, other in (("(near, far)", "(near,)"), ("def far()", "def far(steps: int)")):
        with pytest.raises(InvalidArgument, match=r"environments\.scripted\.source: .*'far'"):
            await tools_after(first.replace(lost, other), keeps_tools=True)
    assert (await reward.play("scripted").observe()).messages[0].content == "seed 0", "the former code goes on"
    more = first.replace("def far(): ...", "def far(): ...\ndef beyond(): ...").replace("far)", "far, beyond)")
    assert await tools_after(more, keeps_tools=True) == ["near", "far", "beyond"]
    assert await tools_after(first.replace("(near, far)", "(near,)"), keeps_tools=False) == ["near"]


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
        assert (await player.finish()).outcome == SCORED


async def test_what_another_server_says_is_cut_in_its_middle_as_well(scripted: dict[str, Any]) -> None:
    async with staged() as other, staged() as stage:
        await other.configure(scripted | {"max_observation_chars": 500_000})
        await stage.configure({"name": "scripted", "server": other.address, "max_observation_chars": 1000})
        player = await stage.begin("scripted")
        said = (await player.say("big 400000")).messages[0].content
    assert len(said) < 1100 and "[399001 " in said, said[:2000]


async def test_the_end_of_another_server_aborts_its_episodes(scripted: dict[str, Any]) -> None:
    async with staged() as stage:
        async with staged() as other:
            await other.configure(scripted)
            await stage.configure({"name": "scripted", "server": other.address})
            player = await stage.begin("scripted")
        with pytest.raises(Aborted, match=r"environments\.scripted\.server"):
            await player.say("a")


async def test_what_comes_with_shoal_is_listed_with_its_tools(stage: Stage) -> None:
    address = {"base_url": "http://127.0.0.1:9"}
    settings = {"browse": address, "search": address, "toolbox": {"tools": [{"source": "search", **address}]}}
    # Their servers have to be there: tests/contract/environments/test_tools.py and test_openenv.py have them.
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


async def test_new_code_of_a_watched_file_is_taken_and_code_that_does_not_work_or_lacks_a_tool_is_not(
    stage: Stage, scripted: dict[str, Any]
) -> None:
    await stage.configure(scripted | {"reload": True})
    file = Path(scripted["source"].partition(":")[0])
    first = file.read_text()

    async def says(text: str) -> bool:
        player = stage.play("scripted")
        said = (await player.observe()).messages[0].content
        await player.finish()
        return said == text

    file.write_text(first.replace("seed {seed}", "SEED {seed}"))
    await eventually(lambda: says("SEED 0"))
    file.write_text("import no_such_module\n")

    async def is_reported(what: str) -> bool:
        return what in stage.service.notice

    await eventually(lambda: is_reported("no_such_module"))
    assert await says("SEED 0"), "code that does not work is used"
    file.write_text(first.replace("tools = (near, far)", "tools = (near,)"))
    await eventually(lambda: is_reported("has no tool 'far' with the parameters in the run's prompts"))
    assert await says("SEED 0") and [tool.name for tool in (await stage.listed())["scripted"].tools] == ["near", "far"]
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

    def step(self, turn):
        return "No more."
'''


@pytest.mark.skipif(not OTHER_PYTHONS, reason="needs another Python, 3.11 or later")
async def test_another_interpreter_needs_the_standard_library_alone(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "modules.py"
    file.write_text(MODULES)
    await stage.configure({"name": "modules", "source": f"{file}:Modules", "interpreter": OTHER_PYTHONS[0]})
    said = (await stage.play("modules", {"root": str(ROOT)}).observe()).messages[0].content
    assert said == f"{OTHER_PYTHONS[0]} [] []", "it runs with packages of ours, or finds our folder on its path"


async def test_an_interpreter_that_does_not_exist_is_reported(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"environments\.calculator\.source: /no/python "):
        await stage.configure(CALCULATOR | {"interpreter": "/no/python"})
