"""The way of the groups of an attempt: from a prompt through the sampler to the slot where they settle."""

from dataclasses import dataclass
from functools import partial
from typing import Self

from services.coordinator.rollout.buffer import PacingBuffer
from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.rollout.groups import JudgedGroup
from services.coordinator.rollout.prompt_order import PromptOrder
from services.coordinator.rollout.sampler import Sampler
from services.coordinator.run.controls import RunControls, StopMode
from shoal.config.live import LiveConfig


@dataclass(frozen=True)
class GroupFlow:
    """Numbers groups in the order of issue: each gets a prompt, is sampled, and settles in its slot."""

    prompt_order: PromptOrder
    sampler: Sampler
    buffer: PacingBuffer[JudgedGroup]

    @classmethod
    def beginning_with(
        cls,
        order_number: int,
        prompt_order: PromptOrder,
        sampler: Sampler,
        *,
        config: LiveConfig,
        controls: RunControls,
        version: CurrentVersion,
    ) -> Self:
        """Makes the flow of groups from `order_number` on, which ends with the last one that the run needs."""
        grpo = config().grpo
        buffer: PacingBuffer[JudgedGroup] = PacingBuffer(
            capacity=grpo.max_groups_in_flight,
            groups_per_step=grpo.groups_per_step,
            max_refills=grpo.max_refill_groups,
            first_order_number=order_number,
            last_order_number=partial(last_order_number, config, controls, version),
        )
        return cls(prompt_order, sampler, buffer)


def last_order_number(
    config: LiveConfig, controls: RunControls, version: CurrentVersion, buffer: PacingBuffer[JudgedGroup]
) -> int:
    """Returns the last group that a run needs, as far as is known now.

    That is the last group of the steps still to take, or of those in flight when the run began to drain.
    """
    if controls.stop is StopMode.DRAIN and buffer.window_is_issued:
        return buffer.window_end - 1
    if controls.stop is not None:
        return -1
    steps_to_take = config().run.num_steps - version.policy_version
    num_groups = steps_to_take * config().grpo.groups_per_step + buffer.num_refills
    return buffer.next_to_release + num_groups - 1
