"""The exports of a run to OpenTelemetry: metrics of its steps, and spans in the traces of its groups."""

from collections.abc import Iterable, Mapping

from shoal.rollout import TrainGroup
from shoal.telemetry import metrics as telemetry
from shoal.telemetry import names, trace


def export_step(step: int, metrics: Mapping[str, float]) -> None:
    """Exports an applied train step; `metrics` has the metrics of docs/metrics.md."""
    telemetry.gauge(names.RUN_POLICY_VERSION).set(step)
    if (correct_rate := metrics.get("objective/verifiable_correct_rate")) is not None:
        telemetry.gauge(names.RUN_CORRECT_RATE).set(correct_rate)
    telemetry.gauge(names.RUN_EFFECTIVE_TIME).set(metrics["time/effective_share"])
    telemetry.histogram(names.RUN_STEP).record(metrics["time/step"])
    telemetry.histogram(names.RUN_STEP_WAIT).record(metrics["time/waiting_for_groups"])
    telemetry.histogram(names.RUN_PUBLISH).record(metrics["time/publishing"])
    telemetry.counter(names.RUN_GROUPS).add(int(metrics.get("val/total_reward_groups", 0)), {names.STATE: "TRAINED"})
    export_dropped_groups(int(metrics.get("val/num_groups_dropped", 0)))


def export_dropped_groups(num_groups: int) -> None:
    """Exports that a train step, applied or skipped, has dropped groups."""
    telemetry.counter(names.RUN_GROUPS).add(num_groups, {names.STATE: "DROPPED"})


def publish_spans(groups: Iterable[TrainGroup], policy_version: int, duration_s: float) -> None:
    """Ends each group's trace with a span for the publish of the weights that the group changed.

    The publish ends now.
    """
    for group in groups:
        trace.past_span(
            names.WEIGHTS_PUBLISH,
            parent=group.traceparent,
            duration_s=duration_s,
            group_id=group.group_id,
            policy_version=policy_version,
        )
