"""The path of the groups of an attempt: from a prompt through the sampler to the slot in which the group settles."""

from dataclasses import dataclass

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


def last_order_number(
    config: LiveConfig, controls: RunControls, version: CurrentVersion, buffer: PacingBuffer[JudgedGroup]
) -> int:
    """Returns the order number of the last group that a run needs, as far as is known now. It belongs to the run's last
    step; in a drain, to the next step's window. Returns -1 after a stop, and if that window is not issued."""
    if controls.stop is StopMode.DRAIN and buffer.window_is_issued:
        return buffer.window_end - 1
    if controls.stop is not None:
        return -1
    steps_to_take = config().run.num_steps - version.policy_version
    num_groups = steps_to_take * config().grpo.groups_per_step + buffer.num_refills
    return buffer.next_to_release + num_groups - 1
