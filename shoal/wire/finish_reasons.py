"""Finish reasons as numbers of the protobuf contract."""

from shoal.rollout import FinishReason
from shoal.v1 import rollout_pb2
from shoal.wire.fields import value_of

_TO_WIRE = {
    FinishReason.STOP: rollout_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: rollout_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: rollout_pb2.FINISH_REASON_ABORT,
}
_FROM_WIRE = {number: reason for reason, number in _TO_WIRE.items()}


finish_reason_to_wire = _TO_WIRE.__getitem__


def finish_reason_from_wire(number: rollout_pb2.FinishReason.ValueType) -> FinishReason:
    """Reads a finish reason. Raises `InvalidArgument` when the finish reason is not set or unknown."""
    return value_of(_FROM_WIRE, number, "completion.finish_reason")
