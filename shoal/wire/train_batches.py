"""Train batches as the stream of messages of `TrainStep`."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from shoal.arrays import Int32Array
from shoal.rollout import Completion, HandedGroup, Rollout, TrainBatch, TrainGroup
from shoal.v1 import learner_pb2, rollout_pb2
from shoal.wire.arrays import float32_from_wire, float32_to_wire, int32_from_wire, int32_to_wire
from shoal.wire.completions import completion_from_wire, completion_to_wire, version_from_wire, version_to_wire
from shoal.wire.fields import invalid
from shoal.wire.supports import detach_support

_PART_BYTES = 1 << 20
"""The size in bytes of the rollouts in the message of a held group: a quarter of the largest message."""
_NO_DIGESTS: Mapping[str, str] = {}
_NO_GROUPS: Mapping[str, HandedGroup] = {}


def batch_to_wire(batch: TrainBatch, held: Mapping[str, str] = _NO_DIGESTS) -> Iterator[learner_pb2.TrainStepRequest]:
    """Yields the messages of a `TrainStep` stream: the header, then each group's header and rollouts.

    `held` has the digests of groups that the learner holds, by group id. The stream only names these groups.
    """
    yield _header_to_wire(batch)
    for group in batch.groups:
        if digest := held.get(group.group_id):
            yield from _held_group_to_wire(group, digest)
            continue
        yield _group_to_wire(group)
        for rollout in group.rollouts:
            yield from _rollout_to_wire(rollout)


def _held_group_to_wire(group: TrainGroup, digest: str) -> Iterator[learner_pb2.TrainStepRequest]:
    """Yields the messages of a group that the learner holds: several if its advantages exceed one message."""
    rollouts = [
        _rollout_message(rollout, rollout_pb2.Completion(sample_index=rollout.completion.sample_index))
        for rollout in group.rollouts
    ]
    num_first, num_bytes = 0, 0
    while num_first < len(rollouts) and num_bytes < _PART_BYTES:
        num_bytes += rollouts[num_first].ByteSize()
        num_first += 1
    yield learner_pb2.TrainStepRequest(
        held_group=learner_pb2.HeldGroup(
            group_id=group.group_id, digest=digest, num_rollouts=len(rollouts), rollouts=rollouts[:num_first]
        )
    )
    for rollout in rollouts[num_first:]:
        yield learner_pb2.TrainStepRequest(rollout=rollout)


def _header_to_wire(batch: TrainBatch) -> learner_pb2.TrainStepRequest:
    """Makes the first message of the stream."""
    return learner_pb2.TrainStepRequest(
        header=learner_pb2.TrainStepHeader(
            train_step_id=batch.train_step_id,
            expected_version=version_to_wire(batch.expected_version),
            temperature=batch.temperature,
            num_groups=len(batch.groups),
            next_order_number=batch.next_order_number,
        )
    )


def _group_to_wire(group: TrainGroup) -> learner_pb2.TrainStepRequest:
    """Makes the message before a group's rollouts."""
    return learner_pb2.TrainStepRequest(
        group=learner_pb2.GroupHeader(
            group_id=group.group_id,
            prompt_token_ids=int32_to_wire(group.prompt_token_ids),
            num_rollouts=len(group.rollouts),
            traceparent=group.traceparent,
        )
    )


def _rollout_to_wire(rollout: Rollout) -> Iterator[learner_pb2.TrainStepRequest]:
    """Yields the messages of a rollout: several if its support exceeds one message."""
    completion = completion_to_wire(rollout.completion, with_text=False, with_words=False)
    for part in detach_support(completion):
        yield learner_pb2.TrainStepRequest(support_token_ids=part)
    yield learner_pb2.TrainStepRequest(rollout=_rollout_message(rollout, completion))


def _rollout_message(rollout: Rollout, completion: rollout_pb2.Completion) -> learner_pb2.TrainRollout:
    return learner_pb2.TrainRollout(
        completion=completion,
        advantage=rollout.advantage,
        weight=rollout.weight,
        reward=rollout.reward,
        token_advantages=b"" if rollout.token_advantages is None else float32_to_wire(rollout.token_advantages),
    )


@dataclass
class _Group:
    """A group whose messages are being read."""

    group_id: str
    prompt_token_ids: Int32Array
    traceparent: str
    num_rollouts: int
    held: Mapping[int, Completion] | None = None
    """The completions of a group that was handed over, by sample index."""
    rollouts: list[Rollout] = field(default_factory=list)

    @classmethod
    def of_header(cls, header: learner_pb2.GroupHeader) -> Self:
        prompt_token_ids = int32_from_wire(header.prompt_token_ids, "group.prompt_token_ids")
        return cls(header.group_id, prompt_token_ids, header.traceparent, header.num_rollouts)

    @classmethod
    def of_held(cls, message: learner_pb2.HeldGroup, held: Mapping[str, HandedGroup]) -> Self:
        group = held[message.group_id]
        completions = {completion.sample_index: completion for completion in group.completions}
        read = cls(group.group_id, group.prompt_token_ids, group.traceparent, message.num_rollouts, completions)
        for rollout in message.rollouts:
            read.add(rollout)
        return read

    def add(self, message: learner_pb2.TrainRollout, earlier_support: bytes = b"") -> None:
        if self.held is None:
            completion = completion_from_wire(message.completion, earlier_support)
        else:
            index = message.completion.sample_index
            if index not in self.held:
                raise invalid(
                    "completion.sample_index", f"group {self.group_id} was handed over without sample {index}"
                )
            completion = self.held[index]
        self.rollouts.append(_rollout_of(completion, message))


def batch_from_wire(
    messages: Iterable[learner_pb2.TrainStepRequest], held: Mapping[str, HandedGroup] = _NO_GROUPS
) -> TrainBatch:
    """Reads a whole `TrainStep` stream. Raises `InvalidArgument` for wrong fields and for messages out of order.

    `held` has all groups that the stream only names, by group id.
    """
    header: learner_pb2.TrainStepHeader | None = None
    groups: list[_Group] = []
    support = bytearray()
    for message in messages:
        part = message.WhichOneof("part")
        if (header is None) != (part == "header"):
            raise invalid("part", f"the stream must begin with one header (found: {part})")
        if part == "header":
            header = message.header
        elif part == "group":
            groups.append(_Group.of_header(message.group))
        elif part == "held_group":
            groups.append(_Group.of_held(message.held_group, held))
        elif part == "support_token_ids":
            support += message.support_token_ids
        elif part == "rollout" and groups:
            groups[-1].add(message.rollout, bytes(support))
            support.clear()
        else:
            raise invalid("part", f"a rollout must follow its group's header (found: {part})")
    if header is None:
        raise invalid("part", "the stream is empty; it must begin with a header")
    _check_headers(header, groups)
    return TrainBatch(
        train_step_id=header.train_step_id,
        expected_version=version_from_wire(header.expected_version),
        temperature=header.temperature,
        groups=tuple(
            TrainGroup(
                group_id=group.group_id,
                prompt_token_ids=group.prompt_token_ids,
                rollouts=tuple(group.rollouts),
                traceparent=group.traceparent,
            )
            for group in groups
        ),
        next_order_number=header.next_order_number,
    )


def _check_headers(header: learner_pb2.TrainStepHeader, groups: Sequence[_Group]) -> None:
    if not header.train_step_id:
        raise invalid("header.train_step_id", "is required")
    if not 0 < header.temperature < math.inf:
        raise invalid("header.temperature", f"must be above 0 and finite (given: {header.temperature})")
    if len(groups) != header.num_groups:
        raise invalid("header.num_groups", f"announced {header.num_groups} groups, but the stream has {len(groups)}")
    for group in groups:
        if len(group.rollouts) != group.num_rollouts:
            announced = f"group {group.group_id} announced {group.num_rollouts} rollouts"
            raise invalid("group.num_rollouts", f"{announced}, but the stream has {len(group.rollouts)}")


def _rollout_of(completion: Completion, message: learner_pb2.TrainRollout) -> Rollout:
    token_advantages = None
    if message.token_advantages:
        token_advantages = float32_from_wire(message.token_advantages, "rollout.token_advantages")
        if len(token_advantages) != completion.num_tokens:
            raise invalid(
                "rollout.token_advantages",
                f"must have one value for each of {completion.num_tokens} tokens (given: {len(token_advantages)})",
            )
    return Rollout(
        completion,
        message.advantage,
        weight=message.weight if message.HasField("weight") else 1.0,
        reward=message.reward if message.HasField("reward") else None,
        token_advantages=token_advantages,
    )
