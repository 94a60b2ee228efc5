"""The messages of an episode, turn by turn, for people."""

from collections.abc import Iterator
from typing import NamedTuple

from shoal.v1 import rollout_pb2


class Said(NamedTuple):
    """One message of an episode."""

    who: str
    """The speaker: "turn 2" for the policy, else the tool, or the role of the message."""
    text: str
    note: str
    """The outcome, such as "add malformed: no closing tag", "cut off" or "reward 0.25"; empty if nothing is special."""
    is_policy: bool


def words_of(episode: rollout_pb2.Episode) -> Iterator[Said]:
    """Yields the messages of an episode, in order."""
    for message in episode.first_messages:
        yield Said(_who(message), message.content, "", is_policy=False)
    begins = {segment.start: (number, segment) for number, segment in enumerate(episode.segments, start=1)}
    for number, turn in enumerate(episode.turns, start=1):
        if turn.start in begins:
            yield from _beginning(*begins[turn.start], num_segments=len(begins))
        calls = turn.message.tool_calls
        text = "\n".join(part for part in (turn.message.content, *(call.raw for call in calls)) if part)
        yield Said(f"turn {turn.number or number}", text, "; ".join(_notes(turn)), is_policy=True)
        for message in turn.observations:
            yield Said(_who(message), message.content, "", is_policy=False)


def ending_of(episode: rollout_pb2.Episode) -> str:
    """Describes how an episode ended: "ended after 8 turns (failed), environment failed: division by zero"."""
    outcome = rollout_pb2.ScoreOutcome.Name(episode.outcome).removeprefix("SCORE_OUTCOME_").lower()
    num_turns = len(episode.turns)
    truncated = ", truncated" * episode.truncated
    parts = [f"ended after {num_turns} turn{'s' * (num_turns != 1)} ({episode.stop_reason}{truncated})"]
    if outcome != "scored":
        parts.append(f"environment {outcome}")
    if episode.HasField("reward"):
        parts.append(f"reward of the episode {episode.reward:g}")
    if episode.num_auxiliary_turns:
        parts.append(f"turns that are not trained on: {episode.num_auxiliary_turns}")
    parts += [f"{name} {value:g}" for name, value in sorted(episode.metrics.items())]
    return ", ".join(parts) + (f": {episode.detail}" if episode.detail else "")


def _beginning(number: int, segment: rollout_pb2.EpisodeSegment, *, num_segments: int) -> Iterator[Said]:
    """Yields what the policy read before the first turn of a segment."""
    name = f"segment {number} of {num_segments}" if num_segments > 1 else "an agent asks"
    messages = segment.messages
    for index, message in enumerate(messages):
        yield Said(_who(message), message.content, name if index == 0 else "", is_policy=False)
    if not messages:
        yield Said("context", "(tokens, not messages)", name, is_policy=False)


def _who(message: rollout_pb2.ChatMessage) -> str:
    return message.name or message.role


def _notes(turn: rollout_pb2.EpisodeTurn) -> Iterator[str]:
    if turn.finish_reason == rollout_pb2.FINISH_REASON_LENGTH:
        yield "cut off"
    for call in turn.message.tool_calls:
        status = rollout_pb2.ToolCallStatus.Name(call.status).removeprefix("TOOL_CALL_STATUS_").lower()
        if status != "ok":
            yield f"{call.name or 'call'} {status.replace('_', ' ')}: {call.detail}"
    told = {call.name for call in turn.message.tool_calls if call.status != rollout_pb2.TOOL_CALL_STATUS_OK}
    for outcome in turn.tool_outcomes:
        if not outcome.ok and outcome.name not in told:
            yield f"{outcome.name} {'timed out' if outcome.timed_out else 'failed'} after {outcome.duration_s:.1f} s"
    if turn.HasField("reward"):
        yield f"reward {turn.reward:g}"
