"""Conversion between the plain values of `shoal.rollout` and the messages of `shoal.v1`.

Every `*_from_wire` checks its input and raises `InvalidArgument` that names the field.
"""

from shoal.wire.arrays import float32_from_wire, float32_to_wire, int32_from_wire, int32_to_wire
from shoal.wire.completions import (
    completion_from_wire,
    completion_to_wire,
    version_from_wire,
    version_to_wire,
)
from shoal.wire.conversations import (
    chat_message_from_wire,
    chat_message_to_wire,
    struct_from_wire,
    struct_to_wire,
    tool_from_wire,
    tool_to_wire,
)
from shoal.wire.episodes import tool_outcome_from_wire, tool_outcome_to_wire
from shoal.wire.fields import invalid
from shoal.wire.finish_reasons import finish_reason_from_wire, finish_reason_to_wire
from shoal.wire.handed_groups import handed_group_from_wire, handed_group_to_wire
from shoal.wire.parts import part_from_wire, parts_to_wire, prefixes_from_wire, prefixes_to_wire
from shoal.wire.prompts import ground_truth_from_wire, ground_truth_to_wire, prompt_from_wire, prompt_to_wire
from shoal.wire.sampling import sampling_from_wire, sampling_to_wire
from shoal.wire.scores import outcome_from_wire, outcome_to_wire, score_from_wire, score_to_wire
from shoal.wire.supports import detach_support, support_from_wire, supports_from_wire
from shoal.wire.train_batches import batch_from_wire, batch_to_wire
