"""Every name that a run's `metrics.jsonl` may hold: what it means, how it is computed, and when it is there.

docs/metrics.md is written from this table, and tests hold what runs report against it: no other name, and none missing.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from shoal.config import RunConfig


@dataclass(frozen=True)
class Presence:
    """When a metric is in a line."""

    words: str
    """For the table; empty means always."""
    is_required: Callable[[RunConfig], bool]
    """Whether a run of a configuration reports it in every line of its kind."""


ALWAYS = Presence("", lambda config: True)
SCORED = Presence("when a completion was scored", lambda config: False)
SAMPLED = Presence("when a completion came back", lambda config: False)
TRAINED = Presence("when something was applied", lambda config: True)
MEASURED = Presence("where it applies", lambda config: False)
PUBLISHED = Presence("unless the run stopped before the publish", lambda config: False)
WITH_REFERENCE = Presence(
    'with a reference and `kl.place = "loss"`', lambda config: config.kl.needs_reference and config.kl.place == "loss"
)

WITH_KL = Presence(
    "with a reference that loss or reward looks at",
    lambda config: config.kl.needs_reference and (config.kl.place == "loss" or config.kl.coef > 0),
)
RUNNING = Presence(
    "with `advantage.baseline` running_mean or `advantage.scale` running_std",
    lambda config: config.advantage.is_running,
)
KL_IN_REWARD = Presence(
    'with `kl.place = "reward"` and a coefficient', lambda config: config.kl.place == "reward" and config.kl.coef > 0
)


@dataclass(frozen=True)
class RunMetric:
    """One name. A part in angle brackets stands for names of the run's own: verifiers, sources, numbers."""

    name: str
    unit: str
    meaning: str
    formula: str = ""
    """In the terms that the table's foot explains; empty where the meaning says it all."""
    presence: Presence = ALWAYS

    @property
    def pattern(self) -> re.Pattern[str]:
        parts = re.split(r"(<\w+>)", self.name)
        return re.compile("".join(".+" if part.startswith("<") else re.escape(part) for part in parts))


@dataclass(frozen=True)
class MetricSection:
    """Metrics that one page heading holds."""

    title: str
    words: str
    metrics: Sequence[RunMetric]
    of_evaluation: bool = False
    """Of an evaluation's line, not of a train step's."""


def undocumented(names: Collection[str], sections: Sequence[MetricSection]) -> list[str]:
    """The names that no metric of the table has."""
    patterns = [metric.pattern for section in sections for metric in section.metrics]
    return sorted(name for name in names if not any(pattern.fullmatch(name) for pattern in patterns))


def missing(names: Collection[str], config: RunConfig, sections: Sequence[MetricSection]) -> list[str]:
    """The metrics of some sections that a run of this configuration reports in every line, and that are not there."""
    return sorted(
        metric.name
        for section in sections
        for metric in section.metrics
        if metric.presence.is_required(config) and not any(metric.pattern.fullmatch(name) for name in names)
    )
