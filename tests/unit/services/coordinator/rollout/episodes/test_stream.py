"""What the end of an episode's stream means."""

import asyncio
import gc
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from services.coordinator.rollout.episodes import stream as episode_stream
from services.coordinator.rollout.episodes.messages import (
    BrokenEpisode,
    EpisodeStart,
    PolicyRefusal,
    PolicyTurn,
    RefusalReason,
    start_to_wire,
)
from services.coordinator.rollout.episodes.stream import EnvironmentLost, EpisodeStream
from shoal.conversation import ChatMessage
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, ResourceExhausted, ShoalError, Unavailable
from shoal.rollout import EnvironmentTask, FinishReason
from shoal.v1 import environment_pb2 as pb
from shoal.v1 import rollout_pb2

START = EpisodeStart("episode", EnvironmentTask("counter", {}), 0, (), 60.0)
FIRST = pb.RunEpisodeResponse(observation=pb.Observation(turn=0))
TURN = PolicyTurn(1, ChatMessage("assistant", "1"), FinishReason.STOP, 1)
SCORED = rollout_pb2.SCORE_OUTCOME_SCORED
KILLED, DIED = Unavailable("cannot be reached"), Aborted("its process died; begin it again")


class Call:
    """A stream that answers by a script, and then ends with an error."""

    def __init__(self, answers: Sequence[pb.RunEpisodeResponse], error: ShoalError) -> None:
        self._answers, self._error = list(answers), error
        self.has_ended = False

    def done(self) -> bool:
        return self.has_ended

    async def write(self, request: pb.RunEpisodeRequest) -> None:
        if self.has_ended:
            raise self._error

    async def read(self) -> pb.RunEpisodeResponse:
        if self._answers:
            return self._answers.pop(0)
        self.has_ended = True
        raise self._error


def stream_of(call: Any, start: EpisodeStart = START) -> EpisodeStream:
    member: Any = SimpleNamespace(name="reward service", is_leaving=False, lost=asyncio.Event())
    rewards: Any = SimpleNamespace(leave=AsyncMock())
    return EpisodeStream(call, member, rewards, start, ())


@pytest.mark.parametrize(("tools", "names"), [(None, None), ((), []), (("add",), ["add"])])
def test_the_start_names_the_tools_of_the_row_and_none_for_all(
    tools: tuple[str, ...] | None, names: list[str] | None
) -> None:
    sent = start_to_wire(replace(START, task=EnvironmentTask("counter", {}, tools)), ())
    assert (list(sent.tools.names) if sent.HasField("tools") else None) == names


@pytest.mark.parametrize(("error", "is_loss"), [(KILLED, False), (DIED, True)], ids=["service", "environment"])
async def test_a_service_that_ends_while_the_policy_samples_does_not_count_against_the_episode(
    error: ShoalError, is_loss: bool
) -> None:
    call = Call([FIRST], error)
    stream = stream_of(call)
    await stream.first()
    call.has_ended = True
    with pytest.raises(EnvironmentLost) as lost:
        await stream.answer(TURN)
    assert lost.value.is_loss is is_loss, str(lost.value)


async def test_a_service_that_ends_whenever_an_episode_begins_is_a_loss_each_time() -> None:
    with pytest.raises(EnvironmentLost) as lost:
        await stream_of(Call([], KILLED)).first()
    assert lost.value.is_loss


async def test_a_call_that_ends_with_an_error_when_nobody_waits_any_more_is_not_reported() -> None:
    begun, reports = asyncio.Event(), []

    async def write(_: pb.RunEpisodeRequest) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise KILLED from None

    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    answering = asyncio.create_task(stream_of(SimpleNamespace(done=lambda: False, write=write)).answer(TURN))
    await begun.wait()
    answering.cancel()
    await asyncio.wait([answering])
    del answering  # It refers to the call.
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    assert not reports, reports


async def test_an_answer_may_wait_for_all_that_share_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_stream, "GRACE_S", 0.0)
    call = SimpleNamespace(done=lambda: False, write=AsyncMock(), read=lambda: asyncio.Event().wait())
    start = replace(START, call_timeout_s=0.01, num_sharing=3)
    with pytest.raises(EnvironmentLost, match=r" 0\.03 s"):
        await stream_of(call, start).first()


@pytest.mark.parametrize("hangs", ["write", "read"])
@pytest.mark.parametrize("is_agent", [False, True], ids=["environment", "agent"])
async def test_an_episode_leaves_a_silent_service_as_soon_as_its_lease_is_over(
    hangs: str, is_agent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_stream, "_LAST_WORDS_S", 0.0)

    async def hang(*_: Any) -> None:
        is_waiting.set()
        await asyncio.Event().wait()

    is_waiting = asyncio.Event()
    call: Any = SimpleNamespace(done=lambda: False, write=AsyncMock(), read=AsyncMock(return_value=FIRST))
    stream = stream_of(call)
    await stream.first()
    setattr(call, hangs, hang)
    if is_agent and hangs == "write":
        asked = asyncio.create_task(stream.reply("c1", PolicyRefusal(RefusalReason.LIMIT, "")))
    else:
        asked = asyncio.create_task(stream.next_call() if is_agent else stream.answer(TURN))  # type: ignore[arg-type]
    await is_waiting.wait()
    stream._member.record = SimpleNamespace(loss_reason="no heartbeat for 15 s")  # type: ignore[assignment]
    stream._member.lost.set()
    with pytest.raises(EnvironmentLost, match="no heartbeat for 15 s") as lost:
        await asyncio.wait_for(asked, 10)
    assert lost.value.is_loss


async def test_a_service_that_is_lost_may_still_say_why_its_stream_ends() -> None:
    stream = stream_of(Call([FIRST], Aborted("told to end", reason=ErrorReason.SHUTTING_DOWN)))
    await stream.first()
    stream._member.lost.set()
    with pytest.raises(EnvironmentLost, match="told to end") as lost:
        await stream.answer(TURN)
    assert not lost.value.is_loss


async def test_a_service_that_has_no_place_says_when_to_come_again() -> None:
    with pytest.raises(EnvironmentLost) as lost:
        await stream_of(Call([], ResourceExhausted("full", retry_after_s=7.0))).first()
    assert (lost.value.retry_after_s, lost.value.is_loss) == (7.0, False)


@pytest.mark.parametrize(
    "answer",
    [
        pb.RunEpisodeResponse(observation=pb.Observation(turn=0, reward=float("nan"))),
        pb.RunEpisodeResponse(result=pb.EpisodeResult(reward=float("inf"))),
        pb.RunEpisodeResponse(result=pb.EpisodeResult(reward=1e300)),
        pb.RunEpisodeResponse(result=pb.EpisodeResult(turn_rewards={"call": float("nan")})),
    ],
)
async def test_a_reward_that_is_no_finite_number_or_too_large_breaks_the_episode_and_not_its_group(
    answer: pb.RunEpisodeResponse,
) -> None:
    if answer.HasField("result"):
        answer.result.outcome = rollout_pb2.SCORE_OUTCOME_SCORED
    stream = stream_of(Call([answer], KILLED))
    with pytest.raises(BrokenEpisode, match=r" (nan|inf|1e\+300);? .*1e\+12"):
        await (stream.first() if answer.HasField("observation") else stream.result())


@pytest.mark.parametrize("duration_s", [math.inf, math.nan, 1e300])
async def test_a_time_that_no_tool_call_can_have_taken_breaks_the_episode_and_not_the_run(duration_s: float) -> None:
    observation = pb.Observation(tool_outcomes=[rollout_pb2.ToolOutcome(name="add", duration_s=duration_s)])
    stream = stream_of(Call([pb.RunEpisodeResponse(observation=observation)], KILLED))
    with pytest.raises(BrokenEpisode, match=rf"'add' took {duration_s:g} s".replace("+", r"\+")):
        await stream.first()


async def test_a_tool_call_that_ended_before_it_began_took_no_time() -> None:
    observation = pb.Observation(tool_outcomes=[rollout_pb2.ToolOutcome(name="add", duration_s=-0.5)])
    stream = stream_of(Call([pb.RunEpisodeResponse(observation=observation)], KILLED))
    assert [outcome.duration_s for outcome in (await stream.first()).tool_outcomes] == [0.0]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (pb.EpisodeResult(), "result.outcome"),
        (pb.EpisodeResult(outcome=77), "result.outcome"),
        (pb.EpisodeResult(outcome=SCORED, metrics={"m": math.nan}), "metric 'm' as nan"),
        (pb.EpisodeResult(outcome=SCORED, metrics={"m": sys.float_info.max}), r"as 1\.79769e\+308"),
        (pb.EpisodeResult(outcome=SCORED, metrics={str(n): 0.0 for n in range(65)}), "65 metrics; at most 64"),
    ],
)
async def test_a_result_that_cannot_be_read_breaks_the_episode_and_is_no_refusal_of_its_task(
    result: pb.EpisodeResult, why: str
) -> None:
    stream = stream_of(Call([pb.RunEpisodeResponse(result=result)], KILLED))
    with pytest.raises(BrokenEpisode, match=why):
        await stream.result()


async def test_a_message_that_cannot_be_read_breaks_the_episode_and_is_no_refusal_of_its_task() -> None:
    message = rollout_pb2.ChatMessage(role="assistant", tool_calls=[rollout_pb2.ToolCall(name="add")])
    stream = stream_of(Call([pb.RunEpisodeResponse(observation=pb.Observation(messages=[message]))], KILLED))
    with pytest.raises(BrokenEpisode, match="cannot be read"):
        await stream.first()


async def test_what_is_told_of_a_result_is_bounded() -> None:
    for outcome in (SCORED, rollout_pb2.SCORE_OUTCOME_FAILED):
        response = pb.RunEpisodeResponse(result=pb.EpisodeResult(outcome=outcome, detail="x" * 100_000))
        assert len((await stream_of(Call([response], KILLED)).result()).detail) == 500
        with pytest.raises(BrokenEpisode) as broken:
            await stream_of(Call([response], KILLED)).first()
        assert len(str(broken.value)) == 500


async def test_names_of_metrics_are_one_line_without_control_characters() -> None:
    metrics = {"said \x1b[31m\nred\t": 1.0, "n" * 200: 2.0}
    result = pb.EpisodeResult(outcome=rollout_pb2.SCORE_OUTCOME_SCORED, metrics=metrics)
    stream = stream_of(Call([pb.RunEpisodeResponse(result=result)], KILLED))
    assert (await stream.result()).metrics == {"said <U+001B>[31m red": 1.0, "n" * 100: 2.0}
