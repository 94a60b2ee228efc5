"""The stream of a train step. It is received whole before the step begins, and only up to a step's largest size."""

from collections.abc import AsyncIterator

from shoal.config import RunConfig
from shoal.config.derived import max_step_bytes
from shoal.error_reasons import ErrorReason
from shoal.errors import ResourceExhausted
from shoal.quantities import format_bytes
from shoal.v1 import learner_pb2

_MESSAGE_BYTES = 512
"""Memory of a message without its contents. It bounds a stream of empty messages too."""


async def receive_step(
    requests: AsyncIterator[learner_pb2.TrainStepRequest], config: RunConfig
) -> list[learner_pb2.TrainStepRequest]:
    """Receives the messages of one train step.

    Raises `ResourceExhausted` (STEP_TOO_LARGE) as soon as they exceed the largest step of the configuration.
    """
    limit = max_step_bytes(config)
    messages: list[learner_pb2.TrainStepRequest] = []
    num_bytes = 0
    async for message in requests:
        num_bytes += message.ByteSize() + _MESSAGE_BYTES
        if num_bytes > limit:
            grpo = config.grpo
            raise ResourceExhausted(
                f"TrainStep: the stream has more than {format_bytes(limit)} ({limit} bytes), twice what "
                f"{grpo.groups_per_step} groups (grpo.groups_per_step) of {grpo.group_size} completions "
                f"(grpo.group_size) with {config.data.max_prompt_tokens} prompt tokens (data.max_prompt_tokens) and "
                f"{config.sampling.max_completion_tokens} completion tokens (sampling.max_completion_tokens) take: "
                "send the groups of one step alone",
                reason=ErrorReason.STEP_TOO_LARGE,
                metadata={"max_bytes": str(limit)},
            )
        messages.append(message)
    return messages
