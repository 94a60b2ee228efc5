"""Completions, and the weight versions that sampled them, as messages."""

from collections.abc import Iterable

import numpy as np

from shoal.rollout import Completion, FinishReason, VersionSpan, WeightVersion
from shoal.token_run import TokenRun
from shoal.v1 import generator_pb2, rollout_pb2
from shoal.wire.arrays import float32_from_wire, float32_to_wire, int32_from_wire, int32_to_wire
from shoal.wire.fields import invalid
from shoal.wire.supports import support_from_wire

_FINISH_TO_WIRE = {
    FinishReason.STOP: rollout_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: rollout_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: rollout_pb2.FINISH_REASON_ABORT,
}
_FINISH_FROM_WIRE = {number: reason for reason, number in _FINISH_TO_WIRE.items()}


def version_to_wire(version: WeightVersion) -> rollout_pb2.WeightVersion:
    return rollout_pb2.WeightVersion(attempt=version.attempt, policy_version=version.policy_version)


def version_from_wire(message: rollout_pb2.WeightVersion) -> WeightVersion:
    return WeightVersion(message.attempt, message.policy_version)


def finish_reason_to_wire(reason: FinishReason) -> rollout_pb2.FinishReason.ValueType:
    return _FINISH_TO_WIRE[reason]


def finish_reason_from_wire(number: rollout_pb2.FinishReason.ValueType) -> FinishReason:
    """Reads a finish reason. Raises `InvalidArgument` when it is not set, or unknown."""
    reason = _FINISH_FROM_WIRE.get(number)
    if reason is None:
        raise invalid("completion.finish_reason", f"must be set (given: {number})")
    return reason


def spans_to_wire(spans: Iterable[VersionSpan]) -> list[rollout_pb2.VersionSpan]:
    return [
        rollout_pb2.VersionSpan(version=version_to_wire(span.version), start=span.start, end=span.end) for span in spans
    ]


def completion_to_wire(completion: Completion, *, with_text: bool = True) -> rollout_pb2.Completion:
    mask, support = completion.loss_mask, completion.support
    return rollout_pb2.Completion(
        sample_index=completion.sample_index,
        token_ids=int32_to_wire(completion.token_ids),
        behavior_logprobs=float32_to_wire(completion.behavior_logprobs),
        loss_mask=b"" if mask is None else np.ascontiguousarray(mask, dtype=np.uint8).tobytes(),
        finish_reason=_FINISH_TO_WIRE[completion.finish_reason],
        version_spans=spans_to_wire(completion.version_spans),
        text=completion.text if with_text else "",
        seed=completion.seed,
        support_token_ids=b"" if support is None else int32_to_wire(support.token_ids),
        support_counts=b"" if support is None else int32_to_wire(support.counts),
    )


def completion_from_wire(message: rollout_pb2.Completion, earlier_support: bytes = b"") -> Completion:
    """Reads a completion. `earlier_support` is what messages before it held of its `support_token_ids`."""
    run = run_from_wire(message, "completion", earlier_support)
    if message.loss_mask and len(message.loss_mask) != run.num_tokens:
        raise invalid("completion.loss_mask", f"{len(message.loss_mask)} values for {run.num_tokens} tokens")
    return Completion(
        sample_index=message.sample_index,
        token_ids=run.token_ids,
        behavior_logprobs=run.logprobs,
        loss_mask=np.frombuffer(message.loss_mask, dtype=np.uint8).astype(bool) if message.loss_mask else None,
        finish_reason=finish_reason_from_wire(message.finish_reason),
        version_spans=run.version_spans,
        text=message.text,
        seed=message.seed,
        support=run.support,
    )


def run_from_wire(
    message: rollout_pb2.Completion | generator_pb2.CompletionPart, field: str, earlier_support: bytes = b""
) -> TokenRun:
    """Reads the tokens of a completion, or of a part of one, with what belongs to each."""
    token_ids = int32_from_wire(message.token_ids, f"{field}.token_ids")
    logprobs = float32_from_wire(message.behavior_logprobs, f"{field}.behavior_logprobs")
    if len(logprobs) != len(token_ids):
        raise invalid(f"{field}.behavior_logprobs", f"{len(logprobs)} values for {len(token_ids)} tokens")
    end = 0
    for span in message.version_spans:
        if span.start != end or span.end < span.start:
            raise invalid(f"{field}.version_spans", f"leave no gap: {span.start} to {span.end} follows {end}")
        end = span.end
    if end != len(token_ids):
        raise invalid(f"{field}.version_spans", f"cover {end} of {len(token_ids)} tokens")
    support = None
    if message.support_counts or message.support_token_ids or earlier_support:
        ids = earlier_support + message.support_token_ids
        support = support_from_wire(ids, message.support_counts, token_ids, f"{field}.support")
    spans = tuple(VersionSpan(version_from_wire(span.version), span.start, span.end) for span in message.version_spans)
    return TokenRun(token_ids, logprobs, spans, support)
