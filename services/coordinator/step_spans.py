"""What a step leaves in the traces of its groups."""

from collections.abc import Iterable

from shoal.rollout import TrainGroup
from shoal.telemetry import names, trace


def publish_spans(groups: Iterable[TrainGroup], policy_version: int, duration_s: float) -> None:
    """Ends each group's trace with the publish of the weights that it changed, which is over now."""
    for group in groups:
        trace.past_span(
            names.WEIGHTS_PUBLISH,
            parent=group.traceparent,
            duration_s=duration_s,
            group_id=group.group_id,
            policy_version=policy_version,
        )
