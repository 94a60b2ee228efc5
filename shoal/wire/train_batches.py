"""Train batches as the stream of messages of `TrainStep`."""

import math
from collections.abc import Iterable, Iterator, Sequence

from shoal.rollout import Rollout, TrainBatch, TrainGroup
from shoal.v1 import learner_pb2
from shoal.wire.arrays import float32_from_wire, float32_to_wire, int32_from_wire, int32_to_wire
from shoal.wire.completions import completion_from_wire, completion_to_wire, version_from_wire, version_to_wire
from shoal.wire.fields import invalid
from shoal.wire.supports import detach_support


def batch_to_wire(batch: TrainBatch) -> Iterator[learner_pb2.TrainStepRequest]:
    """Yields the messages of a `TrainStep` stream: the header, then each group's header and rollouts."""
    yield header_to_wire(batch)
    for group in batch.groups:
        yield group_to_wire(group)
        for rollout in group.rollouts:
            yield from rollout_to_wire(rollout)


def header_to_wire(batch: TrainBatch) -> learner_pb2.TrainStepRequest:
    """Makes the first message of the stream."""
    return learner_pb2.TrainStepRequest(
        header=learner_pb2.TrainStepHeader(
            train_step_id=batch.train_step_id,
            expected_version=version_to_wire(batch.expected_version),
            temperature=batch.temperature,
            num_groups=len(batch.groups),
        )
    )


def group_to_wire(group: TrainGroup) -> learner_pb2.TrainStepRequest:
    """Makes the message before a group's rollouts."""
    return learner_pb2.TrainStepRequest(
        group=learner_pb2.GroupHeader(
            group_id=group.group_id,
            prompt_token_ids=int32_to_wire(group.prompt_token_ids),
            num_rollouts=len(group.rollouts),
            traceparent=group.traceparent,
        )
    )


def rollout_to_wire(rollout: Rollout) -> Iterator[learner_pb2.TrainStepRequest]:
    """Yields the messages of a rollout: several if its support exceeds one message."""
    completion = completion_to_wire(rollout.completion, with_text=False, with_words=False)
    for part in detach_support(completion):
        yield learner_pb2.TrainStepRequest(support_token_ids=part)
    yield learner_pb2.TrainStepRequest(
        rollout=learner_pb2.TrainRollout(
            completion=completion,
            advantage=rollout.advantage,
            weight=rollout.weight,
            reward=rollout.reward,
            token_advantages=b"" if rollout.token_advantages is None else float32_to_wire(rollout.token_advantages),
        )
    )


def batch_from_wire(messages: Iterable[learner_pb2.TrainStepRequest]) -> TrainBatch:
    """Reads a whole `TrainStep` stream. Raises `InvalidArgument` for wrong fields and for messages out of order."""
    header: learner_pb2.TrainStepHeader | None = None
    groups: list[tuple[learner_pb2.GroupHeader, list[Rollout]]] = []
    support = bytearray()
    for message in messages:
        part = message.WhichOneof("part")
        if (header is None) != (part == "header"):
            raise invalid("part", f"the stream must begin with one header (found: {part})")
        if part == "header":
            header = message.header
        elif part == "group":
            groups.append((message.group, []))
        elif part == "support_token_ids":
            support += message.support_token_ids
        elif part == "rollout" and groups:
            groups[-1][1].append(_rollout_from_wire(message.rollout, bytes(support)))
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
                prompt_token_ids=int32_from_wire(group.prompt_token_ids, "group.prompt_token_ids"),
                rollouts=tuple(rollouts),
                traceparent=group.traceparent,
            )
            for group, rollouts in groups
        ),
    )


def _check_headers(
    header: learner_pb2.TrainStepHeader, groups: Sequence[tuple[learner_pb2.GroupHeader, Sequence[Rollout]]]
) -> None:
    if not header.train_step_id:
        raise invalid("header.train_step_id", "is required")
    if not 0 < header.temperature < math.inf:
        raise invalid("header.temperature", f"must be above 0 and finite (given: {header.temperature})")
    if len(groups) != header.num_groups:
        raise invalid("header.num_groups", f"announced {header.num_groups} groups, but the stream has {len(groups)}")
    for group, rollouts in groups:
        if len(rollouts) != group.num_rollouts:
            announced = f"group {group.group_id} announced {group.num_rollouts} rollouts"
            raise invalid("group.num_rollouts", f"{announced}, but the stream has {len(rollouts)}")


def _rollout_from_wire(message: learner_pb2.TrainRollout, earlier_support: bytes) -> Rollout:
    completion = completion_from_wire(message.completion, earlier_support)
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
