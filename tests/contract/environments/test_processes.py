"""Processes of environments: what ends one, what its episodes lose, and what they leave behind."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, ResourceExhausted
from shoal.v1 import rollout_pb2
from tests.support.environment_client import Player, Stage
from tests.support.waiting import eventually

SCORED, FAILED = rollout_pb2.SCORE_OUTCOME_SCORED, rollout_pb2.SCORE_OUTCOME_FAILED


def pids(stage: Stage) -> list[int]:
    return list(stage.service.pids)


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("verb", ["hang", "wait"])
async def test_a_call_that_hangs_fails_its_episode_and_the_others_of_its_process_go_on(
    stage: Stage, scripted: dict[str, Any], verb: str
) -> None:
    await stage.configure(scripted)
    other = await stage.begin("scripted")
    await other.say("a")
    hanging = await stage.begin("scripted", call_timeout_s=0.2)
    [pid] = pids(stage)
    hanging.send(verb)
    result = await hanging.result()
    assert result.outcome == FAILED and result.detail.startswith("step ") and "0.2 s" in result.detail, result
    assert (await other.say("b")).messages[0].content == "a,b"
    assert (pid in pids(stage)) == (verb == "wait"), "only what computes costs its process"


async def test_a_call_that_waits_is_not_late_because_others_of_its_process_compute(
    stage: Stage, forgetful: dict[str, Any], tmp_path: Path
) -> None:
    await stage.configure(forgetful)
    waiting, *computing = [await stage.begin("forgetful", call_timeout_s=3.5) for _ in range(6)]
    waiting.send(f"naps {tmp_path}/begun")
    await eventually((tmp_path / "begun").exists, "the call waits")
    [pid] = pids(stage)
    for player in computing:
        player.send("compute 0.75")
    for player in (*computing, waiting):
        assert (await player.observe()).messages, "each of them has less to do than its limit of 3.5 s"
    assert pids(stage) == [pid], "the process works, and is killed"


async def test_an_episode_whose_process_is_killed_goes_on_by_replay(stage: Stage, scripted: dict[str, Any]) -> None:
    await stage.configure(scripted)
    player = await stage.begin("scripted", seed=3)
    await player.say("a")
    [pid] = pids(stage)
    os.kill(pid, signal.SIGKILL)
    assert (await player.say("b")).messages[0].content == "a,b"
    assert pid not in pids(stage)


async def test_a_turn_whose_process_dies_in_it_is_played_again(player: Player, tmp_path: Path) -> None:
    await player.say("a")
    text = f"die {tmp_path}/died"
    assert (await player.say(text)).messages[0].content == f"a,{text}"


async def test_kills_of_many_turns_of_one_episode_do_not_blame_it(player: Player, tmp_path: Path) -> None:
    texts = [f"die {tmp_path}/{number}" for number in range(4)]
    for number, text in enumerate(texts, start=1):
        assert (await player.say(text)).messages[0].content == ",".join(texts[:number])


async def test_an_episode_that_kills_its_process_fails_alone(stage: Stage, scripted: dict[str, Any]) -> None:
    await stage.configure(scripted)
    killing, innocent = await stage.begin("scripted"), await stage.begin("scripted")
    innocent.send("nap")
    killing.send("always_die")
    result = await killing.result()
    assert result.outcome == FAILED and "died 3 times" in result.detail, result.detail
    assert (await innocent.observe()).messages[0].content == "nap", "it slept in the process that the other one killed"
    assert (await innocent.finish()).outcome == SCORED


async def test_an_episode_that_is_not_deterministic_is_aborted_with_its_process(
    stage: Stage, forgetful: dict[str, Any]
) -> None:
    await stage.configure(forgetful)
    player = await stage.begin("forgetful")
    os.kill(pids(stage)[0], signal.SIGKILL)
    with pytest.raises(Aborted, match="begin the episode again"):
        await player.say("a")


async def test_a_replay_that_differs_fails_the_episode(stage: Stage, scripted: dict[str, Any]) -> None:
    await stage.configure(scripted)
    player = await stage.begin("scripted", {"tells_pid": True})
    os.kill(pids(stage)[0], signal.SIGKILL)
    player.send("a")
    result = await player.result()
    assert result.outcome == FAILED and "is_deterministic" in result.detail, result.detail


async def test_a_flood_of_output_keeps_no_other_episode_waiting(
    stage: Stage, scripted: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    await stage.configure(scripted | {"episodes_per_process": 1})
    flooding = await stage.begin("scripted", call_timeout_s=1.0)
    flooding.send("print 1000000")
    other = await stage.begin("scripted")
    assert (await other.say("a")).messages[0].content == "a"
    assert (await flooding.result()).outcome == FAILED
    printed = [record for record in caplog.records if "xxx" in record.message]
    assert len(printed) < 2000, f"{len(printed)} lines of a flood are in the log"


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_process_that_an_environment_leaves_behind_ends_with_its_episodes_and_with_its_process(
    stage: Stage, player: Player, is_killed: bool
) -> None:
    await player.say("leave")
    [pid] = pids(stage)
    [child] = psutil.Process(pid).children()
    assert os.getpgid(child.pid) != os.getpgid(pid), "the test is about a process with a session of its own"
    if is_killed:
        os.kill(pid, signal.SIGKILL)
    else:
        await player.finish()
    await eventually(lambda: has_ended(child), f"process {child.pid} is gone")


async def test_a_stream_that_ends_early_frees_its_episode(stage: Stage, scripted: dict[str, Any]) -> None:
    await stage.configure(scripted | {"max_episodes": 1})
    player = await stage.begin("scripted")
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
        await player.finish()
    assert len(seen) == 2, f"two episodes shared a process: {seen}"


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
    player = await stage.begin("scripted")
    for name in "abc":
        (deaths / name).unlink()
    os.kill(pids(stage)[0], signal.SIGKILL)
    assert (await player.say("a")).messages[0].content == "a"
    assert len(list(deaths.iterdir())) == 3, "the test is about three deaths"
