"""What happens in an episode: its turns, its result, and what breaks."""

import asyncio
import gc
import os
import signal
from typing import Any

import pytest

from shoal.errors import InvalidArgument
from shoal.v1 import rollout_pb2
from shoal.v1.rollout_pb2 import ToolNames
from tests.support.environment_client import Player, Stage, staged, turn
from tests.support.waiting import eventually

CALCULATOR = {"name": "calculator"}
SCORED, FAILED = rollout_pb2.SCORE_OUTCOME_SCORED, rollout_pb2.SCORE_OUTCOME_FAILED


@pytest.mark.parametrize(
    ("environment", "task", "fields", "says"),
    [
        ("nothing", {}, {}, "no environment 'nothing'; configured: forgetful, scripted"),
        ("scripted", {"bad": True}, {}, "it is bad"),
        ("scripted", {}, {"seed": -1}, "start.seed"),
        (
            "scripted",
            {},
            {"tools": ToolNames(names=["fly"])},
            "start.tools.*scripted has no tool 'fly'; it has: near, far",
        ),
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
    result = await player.finish()
    assert (result.outcome, result.HasField("reward"), dict(result.metrics)) == (SCORED, False, {"turns": 1.0})


async def test_reward_detail_and_metrics_of_an_episode_are_read_at_its_end(player: Player) -> None:
    assert (await player.say("done")).reward == 0.5
    result = await player.result()
    assert (result.reward, result.detail) == (1.5, "finished")


async def test_a_replayed_episode_is_where_it_was(stage: Stage, scripted: dict[str, Any]) -> None:
    await stage.configure(scripted)
    player = stage.play("scripted", replay=[turn(1, "a"), turn(2, "b")])
    observation = await player.observe()
    assert (observation.turn, observation.messages[0].content) == (2, "a,b")
    assert (await player.say("c")).messages[0].content == "a,b,c"


@pytest.mark.parametrize(("tools", "says"), [(None, "all"), (ToolNames(names=["far"]), "far"), (ToolNames(), "none")])
async def test_an_environment_is_told_which_tools_are_offered_before_its_reset_also_in_another_process(
    stage: Stage, scripted: dict[str, Any], tools: ToolNames | None, says: str
) -> None:
    await stage.configure(scripted)
    player = await stage.begin("scripted", tools=tools)
    assert (await player.say("tools")).messages[0].content == says
    [pid] = stage.service.pids
    os.kill(pid, signal.SIGKILL)
    assert (await player.say("tools")).messages[0].content == says
    assert pid not in stage.service.pids


async def test_an_exception_fails_the_episode_with_a_line_and_the_traceback_is_in_the_log(
    player: Player, caplog: pytest.LogCaptureFixture
) -> None:
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
async def test_what_breaks_inside_is_an_outcome(player: Player, text: str, outcome: int, says: str) -> None:
    player.send(text)
    result = await player.result()
    assert (result.outcome, says in result.detail) == (outcome, True), result.detail


async def test_a_long_observation_is_cut_in_its_middle_with_a_note(stage: Stage, scripted: dict[str, Any]) -> None:
    await stage.configure(scripted | {"max_observation_chars": 1000})
    player = await stage.begin("scripted")
    said = (await player.say("big 2000000")).messages[0].content
    assert len(said) < 1100 and said.startswith("aaa") and said.endswith("z"), said
    assert "[1999001 " in said


async def test_episodes_that_end_or_are_canceled_leave_no_error_in_the_processes_between(
    stage: Stage, scripted: dict[str, Any]
) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with staged() as behind:
        await behind.configure(scripted)
        await stage.configure({"name": "scripted", "server": behind.address})
        for last in ("wait", "done"):
            player = await stage.begin("scripted")
            player.send(last)
            if last == "done":
                # This side leaves its stream of requests open, and so the one between the two services is.
                kinds = [response.WhichOneof("part") async for response in player.call]
                assert kinds == ["observation", "result"]
            player.call.cancel()
            del player
        await eventually(lambda: not stage.service.num_open + behind.service.num_open, "every episode has ended")
        gc.collect()
        for _ in range(5):
            await asyncio.sleep(0)
    assert not reported, f"{len(reported)} errors outside of every call, such as {reported[0]}"
