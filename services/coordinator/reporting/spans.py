"""Spans that a train step adds to the traces of its groups."""

from collections.abc import Iterable

from shoal.rollout import TrainGroup
from shoal.telemetry import names, trace


def publish_spans(groups: Iterable[TrainGroup], policy_version: int, duration_s: float) -> None:
    """Ends each group's trace with a span of the publish that ends now, of the weights that the group changed."""
    for group in groups:
        trace.past_span(
            names.WEIGHTS_PUBLISH,
            parent=group.traceparent,
            duration_s=duration_s,
            group_id=group.group_id,
            policy_version=policy_version,
        )
