"""Groups that are handed over before their step, as the stream of messages of `HandOverGroup`."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from shoal.rollout import Completion, HandedGroup
from shoal.v1 import learner_pb2
from shoal.wire.arrays import int32_from_wire, int32_to_wire
from shoal.wire.completions import completion_from_wire, completion_to_wire
from shoal.wire.fields import invalid
from shoal.wire.supports import detach_support

_PART_BYTES = 1 << 20
"""The size in bytes of the completions in one message: a quarter of the largest message."""


def handed_group_to_wire(group: HandedGroup) -> tuple[HandedGroup, Sequence[learner_pb2.HandOverGroupRequest]]:
    """Returns the group with the digest of its content, and the messages of its stream."""
    parts = list(_parts(group.completions))
    header = learner_pb2.HandOverHeader(
        group=learner_pb2.GroupHeader(
            group_id=group.group_id,
            prompt_token_ids=int32_to_wire(group.prompt_token_ids),
            num_rollouts=len(group.completions),
            traceparent=group.traceparent,
        ),
        attempt=group.attempt,
        order_number=group.order_number,
    )
    content = hashlib.sha256(header.SerializeToString())
    for part in parts:
        content.update(part.SerializeToString())
    header.digest = content.hexdigest()
    return replace(group, digest=header.digest), [learner_pb2.HandOverGroupRequest(header=header), *parts]


def _parts(completions: Iterable[Completion]) -> Iterator[learner_pb2.HandOverGroupRequest]:
    """Yields the completions, several in a message if they are small. Parts of a support precede their completion."""
    present, num_bytes = learner_pb2.CompletionList(), 0
    for completion in completions:
        message = completion_to_wire(completion, with_text=False, with_words=False)
        support = list(detach_support(message))
        num_bytes += message.ByteSize()
        if present.completions and (support or num_bytes > _PART_BYTES):
            yield learner_pb2.HandOverGroupRequest(completions=present)
            present, num_bytes = learner_pb2.CompletionList(), message.ByteSize()
        for part in support:
            yield learner_pb2.HandOverGroupRequest(support_token_ids=part)
        present.completions.append(message)
    if present.completions:
        yield learner_pb2.HandOverGroupRequest(completions=present)


def handed_group_from_wire(messages: Iterable[learner_pb2.HandOverGroupRequest]) -> HandedGroup:
    """Reads a whole `HandOverGroup` stream. Raises `InvalidArgument` for wrong fields and messages out of order."""
    header: learner_pb2.HandOverHeader | None = None
    completions: list[Completion] = []
    support = bytearray()
    for message in messages:
        part = message.WhichOneof("part")
        if (header is None) != (part == "header") or part is None:
            raise invalid("part", f"the stream must begin with one header (found: {part})")
        if part == "header":
            header = message.header
        elif part == "support_token_ids":
            support += message.support_token_ids
        else:
            for completion in message.completions.completions:
                completions.append(completion_from_wire(completion, bytes(support)))
                support.clear()
    if header is None:
        raise invalid("part", "the stream is empty; it must begin with a header")
    group = header.group
    for name, value in (("group.group_id", group.group_id), ("digest", header.digest)):
        if not value:
            raise invalid(f"header.{name}", "is required")
    if len(completions) != group.num_rollouts:
        announced = f"group {group.group_id} announced {group.num_rollouts} rollouts"
        raise invalid("header.group.num_rollouts", f"{announced}, but the stream has {len(completions)}")
    return HandedGroup(
        attempt=header.attempt,
        order_number=header.order_number,
        group_id=group.group_id,
        prompt_token_ids=int32_from_wire(group.prompt_token_ids, "header.group.prompt_token_ids"),
        completions=tuple(completions),
        traceparent=group.traceparent,
        digest=header.digest,
    )
