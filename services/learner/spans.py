"""The spans of a train step: a span in the trace of each group that it trains on."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from shoal.rollout import TrainBatch
from shoal.telemetry import names, trace


@contextmanager
def step_spans(batch: TrainBatch) -> Iterator[None]:
    """Returns a context that is a span in the trace of each group of a batch."""
    with ExitStack() as spans:
        for group in batch.groups:
            span = trace.span(
                names.TRAIN_STEP,
                parent=group.traceparent,
                group_id=group.group_id,
                policy_version=batch.expected_version.policy_version,
            )
            spans.enter_context(span)
        yield
