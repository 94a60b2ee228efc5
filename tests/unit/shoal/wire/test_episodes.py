"""Episodes as messages: what is written is read back, and turns that cannot be are refused."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus
from shoal.errors import InvalidArgument
from shoal.rollout import (
    Completion,
    Episode,
    EpisodeSegment,
    EpisodeTurn,
    FinishReason,
    ToolOutcome,
    VersionSpan,
    WeightVersion,
)
from shoal.scores import ScoreOutcome
from shoal.wire import completion_from_wire, completion_to_wire

CALL = ToolCall("call-1", "calc", '{"expression": "2*3"}', ToolCallStatus.OK, "<calc>2*3</calc>")


def turn(start: int, end: int) -> EpisodeTurn:
    return EpisodeTurn(
        start,
        end,
        ChatMessage("assistant", "let me see", (CALL,)),
        FinishReason.STOP,
        seed=7,
        observations=(ChatMessage("tool", "6", tool_call_id="call-1", name="calc"),),
        reward=0.5,
        tool_outcomes=(ToolOutcome("calc", ok=True, timed_out=False, duration_s=0.25),),
        opened_thought="<think>",
    )


def played(*turns: tuple[int, int], spans: tuple[tuple[int, int], ...] = ((0, 2), (4, 6))) -> Completion:
    episode = Episode(
        turns=tuple(turn(start, end) for start, end in turns),
        stop_reason="done",
        is_truncated=False,
        outcome=ScoreOutcome.SCORED,
        reward=1.0,
        first_messages=(ChatMessage("user", "begin"),),
        metrics={"guesses": 2.0},
        detail="found it",
    )
    return Completion(
        sample_index=0,
        token_ids=np.arange(6, dtype=np.int32),
        behavior_logprobs=np.array([-1, -1, np.nan, np.nan, -1, -1], dtype=np.float32),
        finish_reason=FinishReason.STOP,
        version_spans=tuple(VersionSpan(WeightVersion(0, 3), start, end) for start, end in spans),
        seed=1,
        loss_mask=np.array([1, 1, 0, 0, 1, 1], dtype=bool),
        episode=episode,
    )


def test_an_episode_is_read_as_it_was_written() -> None:
    sent = played((0, 2), (4, 6))
    assert completion_from_wire(completion_to_wire(sent)).episode == sent.episode


def test_a_reward_that_is_absent_is_not_zero() -> None:
    sent = played((0, 2), (4, 6))
    assert sent.episode is not None
    bare = replace(sent.episode, reward=None, turns=tuple(replace(one, reward=None) for one in sent.episode.turns))
    read = completion_from_wire(completion_to_wire(replace(sent, episode=bare))).episode
    assert read is not None and read.reward is None and {one.reward for one in read.turns} == {None}


@pytest.mark.parametrize("turns", [((4, 6), (0, 2)), ((0, 3), (2, 6)), ((0, 2), (4, 7)), ((2, 0), (4, 6))])
def test_turns_that_overlap_or_leave_the_completion_are_refused(turns: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(InvalidArgument, match=r"completion\.(episode\.turns|version_spans)"):
        completion_from_wire(completion_to_wire(played(*turns)))


@pytest.mark.parametrize("spans", [((0, 6),), ((0, 2),), ((0, 2), (3, 6)), ((0, 1), (4, 6)), ((4, 6), (0, 2))])
def test_version_spans_of_an_episode_cover_the_sampled_tokens_and_nothing_else(
    spans: tuple[tuple[int, int], ...],
) -> None:
    with pytest.raises(InvalidArgument, match=r"completion\.version_spans"):
        completion_from_wire(completion_to_wire(played((0, 2), (4, 6), spans=spans)))


def test_turns_may_follow_each_other_without_an_observation() -> None:
    read = completion_from_wire(completion_to_wire(played((0, 2), (2, 3), (4, 6), spans=((0, 3), (4, 5), (5, 6)))))
    assert read.episode is not None and len(read.episode.turns) == 3


def segments(*ends: int) -> tuple[EpisodeSegment, ...]:
    """Segments that end there, the first from token 0 on."""
    prompt = np.array([7, 8], np.int32)
    messages = (ChatMessage("user", "go on"),)
    return tuple(EpisodeSegment(prompt, start, end, messages) for start, end in zip((0, *ends), ends, strict=False))


def in_segments(*ends: int) -> Completion:
    sent = played((0, 2), (4, 6))
    assert sent.episode is not None
    return replace(sent, episode=replace(sent.episode, segments=segments(*ends), num_auxiliary_turns=3))


def test_segments_are_read_as_they_were_written() -> None:
    read = completion_from_wire(completion_to_wire(in_segments(2, 6))).episode
    assert read is not None and read.num_auxiliary_turns == 3
    assert [(one.prompt_token_ids.tolist(), one.start, one.end, one.messages) for one in read.segments] == [
        ([7, 8], start, end, (ChatMessage("user", "go on"),)) for start, end in ((0, 2), (2, 6))
    ]


@pytest.mark.parametrize("ends", [(2, 5), (4, 2, 6), (2, 7)])
def test_segments_that_do_not_cover_the_completion_are_refused(ends: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match=r"completion\.episode\.segments"):
        completion_from_wire(completion_to_wire(in_segments(*ends)))
