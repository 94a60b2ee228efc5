"""A page of a listing: as many whole groups as fit into a message, or a part of a group that does not fit."""

from shoal.rpc.options import MAX_MESSAGE_BYTES
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2

MAX_PAGE_BYTES = MAX_MESSAGE_BYTES * 3 // 4
MAX_TEXT_BYTES = 1 << 20
"""Size in bytes to which texts are cut, so that a rollout with the prompt of its group fits into a message."""
_MAX_DETAIL_CHARS = 1000
"""Length to which each verifier's detail is cut if a rollout's details together exceed the size of a text."""


class Page:
    """Fills a response with groups."""

    def __init__(self, response: pb.ListRolloutsResponse) -> None:
        self._groups = response.groups
        self._num_bytes = 0

    def add(self, group: pb.RolloutGroup, num_listed: int) -> int | None:
        """Adds a group without its first `num_listed` rollouts, which are on earlier pages. Returns the number of its
        rollouts that are listed so far; None if all are listed."""
        group.num_rollouts = len(group.rollouts)
        _shorten(group)
        rest = list(group.rollouts)[num_listed:]
        del group.rollouts[:]
        num_bytes = group.ByteSize()
        if self._groups and self._num_bytes + num_bytes + sum(map(_size, rest)) > MAX_PAGE_BYTES:
            return num_listed
        num_taken = 0
        for rollout in rest:
            if num_taken and num_bytes + _size(rollout) > MAX_PAGE_BYTES:
                break
            num_taken += 1
            num_bytes += _size(rollout)
        group.rollouts.extend(rest[:num_taken])
        self._groups.append(group)
        self._num_bytes += num_bytes
        return None if num_taken == len(rest) else num_listed + num_taken


def _size(rollout: pb.Rollout) -> int:
    """Returns the size of a rollout in a group, with its tag and its length."""
    return rollout.ByteSize() + 6


def _shorten(group: pb.RolloutGroup) -> None:
    """Cuts texts that are too long for a page, and states their former lengths."""
    if num_bytes := _excess(group.prompt_text):
        group.prompt_text, group.prompt_text_bytes = _begin(group.prompt_text), num_bytes
    for rollout in group.rollouts:
        if num_bytes := _excess(rollout.text):
            rollout.text, rollout.text_bytes = _begin(rollout.text), num_bytes
        if rollout.episode.ByteSize() > MAX_TEXT_BYTES:
            _shorten_episode(rollout.episode)
        if rollout.score.ByteSize() > MAX_TEXT_BYTES:
            for part in rollout.score.verifier_scores:
                part.detail = part.detail[:_MAX_DETAIL_CHARS]
                if part.HasField("answer"):
                    part.answer = part.answer[:_MAX_DETAIL_CHARS]
                del part.step_scores[_MAX_DETAIL_CHARS:]


def _shorten_episode(episode: rollout_pb2.Episode) -> None:
    """Cuts the details to equal lengths, so that all details fit."""
    turns = episode.turns
    messages = [*episode.first_messages, *(message for turn in turns for message in (turn.message, *turn.observations))]
    messages += [message for segment in episode.segments for message in segment.messages]
    calls = [call for turn in turns for call in turn.message.tool_calls]
    num_chars = MAX_TEXT_BYTES // 4 // (len(messages) + 3 * len(calls) + 1)  # No character takes more than 4 bytes.
    for message in messages:
        message.content = _cut(message.content, num_chars)
    for call in calls:
        call.arguments_json = _cut(call.arguments_json, num_chars)
        call.raw, call.detail = _cut(call.raw, num_chars), _cut(call.detail, num_chars)
    episode.detail = _cut(episode.detail, num_chars)


def _cut(text: str, num_chars: int) -> str:
    return text if len(text) <= num_chars else f"{text[:num_chars]}[… {len(text) - num_chars:,} characters …]"


def _excess(text: str) -> int:
    """Returns the size of a text that has to be cut, else 0."""
    if 4 * len(text) <= MAX_TEXT_BYTES:  # No character takes more bytes.
        return 0
    num_bytes = len(text.encode())
    return num_bytes if num_bytes > MAX_TEXT_BYTES else 0


def _begin(text: str) -> str:
    return text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
