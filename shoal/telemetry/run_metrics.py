"""Types of the table of a run's metrics: a metric's meaning, its formula, and when a line has it.

The table (run_metric_table.py, learner_metric_table.py) has every name of `metrics.jsonl`. docs/metrics.md is generated
from it. Tests check that runs report exactly these names.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from shoal.config import RunConfig


@dataclass(frozen=True)
class RunMetric:
    """A metric.

    A part of the name in angle brackets represents names or numbers of the run: verifiers, sources, values of k.
    """

    name: str
    unit: str
    meaning: str
    formula: str
    """The formula, in the symbols at the foot of the page; empty if the meaning is enough."""
    presence: "Presence"

    @property
    def pattern(self) -> re.Pattern[str]:
        parts = re.split(r"(<\w+>)", self.name)
        return re.compile("".join(".+" if part.startswith("<") else re.escape(part) for part in parts))


@dataclass(frozen=True)
class Presence:
    """The condition under which a line has a metric. Tables of metrics call the condition to describe such a metric."""

    condition: str
    """The condition in words for the page; empty means always."""
    is_required: Callable[[RunConfig], bool] = lambda config: False
    """Whether a run with this configuration reports the metric in every line of its kind."""

    def __call__(self, name: str, unit: str, meaning: str, formula: str = "") -> RunMetric:
        """Describes a metric that a line has under this condition."""
        return RunMetric(name, unit, meaning, formula, self)


class MetricSection:
    """The metrics under one heading of the page."""

    def __init__(self, title: str, introduction: str, *metrics: RunMetric) -> None:
        self.title, self.introduction, self.metrics = title, introduction, metrics


ALWAYS = Presence("", lambda config: True)
TRAINED = Presence("when the step was applied", lambda config: True)
WITH_REFERENCE = Presence(
    'with a reference and `kl.place = "loss"`', lambda config: config.kl.needs_reference and config.kl.place == "loss"
)


def undocumented(names: Collection[str], sections: Sequence[MetricSection]) -> list[str]:
    """Returns those of `names` that the table does not have."""
    patterns = [metric.pattern for section in sections for metric in section.metrics]
    return sorted(name for name in names if not any(pattern.fullmatch(name) for pattern in patterns))


def missing(names: Collection[str], config: RunConfig, sections: Sequence[MetricSection]) -> list[str]:
    """Returns the metrics that are not in `names` although a run with this configuration reports them in every line."""
    return sorted(
        metric.name
        for section in sections
        for metric in section.metrics
        if metric.presence.is_required(config) and not any(metric.pattern.fullmatch(name) for name in names)
    )
