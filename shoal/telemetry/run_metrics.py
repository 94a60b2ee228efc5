"""Types of the table of a run's metrics: a metric's meaning, its formula, and when a line has it.

The table (run_metric_table.py, learner_metric_table.py) has every name of `metrics.jsonl`. docs/metrics.md is generated
from it. Tests check that runs report exactly these names.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from shoal.config import RunConfig


@dataclass(frozen=True)
class Presence:
    """The condition under which a line has a metric."""

    condition: str
    """The condition for the page; empty means always."""
    is_required: Callable[[RunConfig], bool]
    """Whether a run with this configuration reports the metric in every line of its kind."""


ALWAYS = Presence("", lambda config: True)
VARYING = Presence("with six questions or more, whose rewards differ", lambda config: False)
JUDGED = Presence("when a verifier or an environment says what is correct", lambda config: False)
SCORED = Presence("when a completion was scored", lambda config: False)
COMPARED = Presence(
    "with more than two answers a question, where one verifier of each compares answers with each other",
    lambda config: False,
)
SAMPLED = Presence("when a completion came back", lambda config: False)
REPEATED = Presence("from the second evaluated step on", lambda config: False)
TRAINED = Presence("when the step was applied", lambda config: True)
MEASURED = Presence("where it applies", lambda config: False)
SEEN = Presence("once a generator has reported it", lambda config: False)
PLAYED = Presence("when prompts name environments", lambda config: False)
PUBLISHED = Presence("unless the run stopped before the publish", lambda config: False)
WITH_REFERENCE = Presence(
    'with a reference and `kl.place = "loss"`', lambda config: config.kl.needs_reference and config.kl.place == "loss"
)

WITH_KL = Presence(
    "with a reference that the loss or the reward uses",
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
    """A metric. A part of its name in angle brackets stands for names of the run: verifiers, sources, numbers."""

    name: str
    unit: str
    meaning: str
    formula: str = ""
    """The formula, in the symbols at the foot of the page; empty if the meaning is enough."""
    presence: Presence = ALWAYS

    @property
    def pattern(self) -> re.Pattern[str]:
        parts = re.split(r"(<\w+>)", self.name)
        return re.compile("".join(".+" if part.startswith("<") else re.escape(part) for part in parts))


@dataclass(frozen=True)
class MetricSection:
    """The metrics under one heading of the page."""

    title: str
    introduction: str
    metrics: Sequence[RunMetric]
    of_evaluation: bool = False
    """Whether the metrics are in the line of an evaluation instead of a train step."""


def undocumented(names: Collection[str], sections: Sequence[MetricSection]) -> list[str]:
    """Returns the names that the table does not have."""
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
