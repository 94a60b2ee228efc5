"""Checks of requests to the learner, without the model. Each check raises an error that names the field or the run."""

import math
import re
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from shoal.config import RunConfig
from shoal.config.derived import max_step_bytes
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ResourceExhausted
from shoal.quantities import format_bytes
from shoal.v1 import learner_pb2
from shoal.wire import invalid

_M = TypeVar("_M", learner_pb2.TrainStepRequest, learner_pb2.HandOverGroupRequest)

_MESSAGE_BYTES = 512
"""The memory of a message without its contents, in bytes. The value also bounds a stream of empty messages."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_name(name: str, field: str) -> None:
    """Checks that a name can be the name of a folder. For example, the name must not have a slash."""
    if not _NAME.fullmatch(name):
        raise invalid(
            field,
            f"use 1 to 128 letters, digits, '.', '_' and '-', beginning with a letter or a digit (given: {name!r})",
        )


def check_run(run_id: str, served: str) -> None:
    """Checks that a request is for the run that the learner serves. Raises `FailedPrecondition`."""
    if run_id != served:
        raise FailedPrecondition(
            f"the request is for run {run_id!r}, but the learner serves run {served!r}",
            reason=ErrorReason.OTHER_CONFIGURATION,
            metadata={"run_id": served},
        )


def check_logprobs(request: learner_pb2.ComputeLogprobsRequest) -> None:
    """Checks temperature and model."""
    if not 0 < request.temperature < math.inf:
        raise invalid("temperature", f"must be above 0 and finite (given: {request.temperature})")
    if request.model not in (learner_pb2.MODEL_UNSPECIFIED, learner_pb2.MODEL_POLICY, learner_pb2.MODEL_REFERENCE):
        raise invalid("model", f"must be MODEL_POLICY or MODEL_REFERENCE (given: {request.model})")


def check_weight_group(request: learner_pb2.CreateWeightGroupRequest) -> None:
    """Checks epoch and size."""
    if request.epoch < 1:
        raise invalid("epoch", f"must be at least 1 (given: {request.epoch})")
    if request.world_size < 1:
        raise invalid("world_size", f"must be at least 1, since the learner is a member (given: {request.world_size})")


async def receive_step(
    requests: AsyncIterator[learner_pb2.TrainStepRequest], config: RunConfig
) -> list[learner_pb2.TrainStepRequest]:
    """Receives all messages of one train step, before the step begins.

    Raises `ResourceExhausted` (STEP_TOO_LARGE) as soon as the messages have more than `max_step_bytes`.
    """
    limit = max_step_bytes(config)
    messages: list[learner_pb2.TrainStepRequest] = []
    num_bytes = 0
    async for message in requests:
        num_bytes += message_bytes(message, len(message.held_group.rollouts))
        if num_bytes > limit:
            grpo = config.grpo
            raise ResourceExhausted(
                f"TrainStep: the stream has more than {format_bytes(limit)} ({limit} bytes), twice the largest step "
                f"with grpo.groups_per_step = {grpo.groups_per_step}, grpo.group_size = {grpo.group_size}, "
                f"data.max_prompt_tokens = {config.data.max_prompt_tokens} and sampling.max_completion_tokens = "
                f"{config.sampling.max_completion_tokens}: send only the groups of one step",
                reason=ErrorReason.STEP_TOO_LARGE,
                metadata={"max_bytes": str(limit)},
            )
        messages.append(message)
    return messages


def message_bytes(message: _M, num_parts: int) -> int:
    """Returns the memory of a message with so many messages inside."""
    return message.ByteSize() + _MESSAGE_BYTES * max(1, num_parts)


def take_all(messages: list[_M]) -> Iterator[_M]:
    """Yields the messages in order and empties the list, so that what was read is in memory once."""
    messages.reverse()
    while messages:
        yield messages.pop()
