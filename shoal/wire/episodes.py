"""Episodes, and their turns, as messages."""

from collections.abc import Sequence

from shoal.rollout import Episode, EpisodeSegment, EpisodeTurn, ToolOutcome
from shoal.v1 import rollout_pb2
from shoal.wire.arrays import int32_from_wire, int32_to_wire
from shoal.wire.conversations import chat_message_from_wire, chat_message_to_wire
from shoal.wire.fields import invalid
from shoal.wire.finish_reasons import finish_reason_from_wire, finish_reason_to_wire
from shoal.wire.scores import outcome_from_wire, outcome_to_wire


def episode_to_wire(episode: Episode, *, with_words: bool = True, with_prompts: bool = True) -> rollout_pb2.Episode:
    """Makes the message of an episode.

    With `with_words` the message has all texts. With `with_prompts` the message has the tokens that the policy read
    before each segment. Texts and prompts may be long, and only a learner needs the prompts.
    """
    return rollout_pb2.Episode(
        first_messages=map(chat_message_to_wire, episode.first_messages) if with_words else (),
        turns=[_turn_to_wire(turn, with_words) for turn in episode.turns],
        stop_reason=episode.stop_reason,
        truncated=episode.is_truncated,
        outcome=outcome_to_wire(episode.outcome),
        reward=episode.reward,
        metrics=episode.metrics,
        detail=episode.detail,
        segments=[_segment_to_wire(segment, with_words, with_prompts) for segment in episode.segments],
        num_auxiliary_turns=episode.num_auxiliary_turns,
    )


def episode_from_wire(message: rollout_pb2.Episode, num_tokens: int) -> Episode:
    """Reads the episode of a completion of `num_tokens` tokens.

    Raises `InvalidArgument` for turns out of order or outside of the completion, and for segments that do not cover it.
    """
    end = 0
    for turn in message.turns:
        if not end <= turn.start <= turn.end <= num_tokens:
            raise invalid(
                "completion.episode.turns",
                f"must be in order within {num_tokens} tokens (given: {turn.start} to {turn.end} after one to {end})",
            )
        end = turn.end
    return Episode(
        turns=tuple(map(_turn_from_wire, message.turns)),
        stop_reason=message.stop_reason,
        is_truncated=message.truncated,
        outcome=outcome_from_wire(message.outcome, "completion.episode.outcome"),
        reward=message.reward if message.HasField("reward") else None,
        first_messages=tuple(map(chat_message_from_wire, message.first_messages)),
        metrics=dict(message.metrics),
        detail=message.detail,
        segments=_segments_from_wire(message.segments, num_tokens),
        num_auxiliary_turns=message.num_auxiliary_turns,
    )


def _segment_to_wire(segment: EpisodeSegment, with_words: bool, with_prompts: bool) -> rollout_pb2.EpisodeSegment:
    return rollout_pb2.EpisodeSegment(
        prompt_token_ids=int32_to_wire(segment.prompt_token_ids) if with_prompts else b"",
        start=segment.start,
        end=segment.end,
        messages=map(chat_message_to_wire, segment.messages) if with_words else (),
    )


def _segments_from_wire(messages: Sequence[rollout_pb2.EpisodeSegment], num_tokens: int) -> tuple[EpisodeSegment, ...]:
    field, end = "completion.episode.segments", 0
    segments = []
    for message in messages:
        if not message.start == end <= message.end:
            raise invalid(field, f"must follow each other ({message.start} to {message.end} does not follow {end})")
        end = message.end
        segments.append(
            EpisodeSegment(
                int32_from_wire(message.prompt_token_ids, f"{field}.prompt_token_ids"),
                message.start,
                end,
                tuple(map(chat_message_from_wire, message.messages)),
            )
        )
    if segments and end != num_tokens:
        raise invalid(field, f"must cover the {num_tokens} tokens (they end at {end})")
    return tuple(segments)


def _turn_to_wire(turn: EpisodeTurn, with_words: bool) -> rollout_pb2.EpisodeTurn:
    return rollout_pb2.EpisodeTurn(
        start=turn.start,
        end=turn.end,
        message=chat_message_to_wire(turn.message) if with_words else None,
        observations=map(chat_message_to_wire, turn.observations) if with_words else (),
        reward=turn.reward,
        finish_reason=finish_reason_to_wire(turn.finish_reason),
        tool_outcomes=map(tool_outcome_to_wire, turn.tool_outcomes),
        seed=turn.seed,
        number=turn.number,
        opened_thought=turn.opened_thought,
    )


def _turn_from_wire(message: rollout_pb2.EpisodeTurn) -> EpisodeTurn:
    return EpisodeTurn(
        start=message.start,
        end=message.end,
        message=chat_message_from_wire(message.message),
        finish_reason=finish_reason_from_wire(message.finish_reason),
        seed=message.seed,
        observations=tuple(map(chat_message_from_wire, message.observations)),
        reward=message.reward if message.HasField("reward") else None,
        tool_outcomes=tuple(map(tool_outcome_from_wire, message.tool_outcomes)),
        number=message.number,
        opened_thought=message.opened_thought,
    )


def tool_outcome_to_wire(outcome: ToolOutcome) -> rollout_pb2.ToolOutcome:
    return rollout_pb2.ToolOutcome(
        name=outcome.name, ok=outcome.ok, timed_out=outcome.timed_out, duration_s=outcome.duration_s
    )


def tool_outcome_from_wire(message: rollout_pb2.ToolOutcome) -> ToolOutcome:
    return ToolOutcome(message.name, message.ok, message.timed_out, message.duration_s)
