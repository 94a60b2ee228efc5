"""The curves of a run's report: the metrics, and how each metric is drawn."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from services.coordinator.reporting.page import axes
from services.coordinator.reporting.page.chart import Chart, Curve, Steps, Style, Values, draw
from services.coordinator.reporting.reward_parts import part_metrics

MAX_POINTS = 300
"""Maximum number of points of a chart. In a longer run each point represents several steps."""
MAX_PARTS = 4
MIN_TREND_POINTS = 30
TREND_SHARE = 0.1
"""Each point of the trend is the mean of this share of a chart's points."""

Row = Mapping[str, float]
"""The metrics of one step, by name; `step` is the number of the step."""


@dataclass(frozen=True)
class Metric:
    """A metric in a chart."""

    label: str
    name: str
    style: Style = Style.LINE
    of_several: Callable[[Sequence[float]], float] = fmean
    """The value of a point that represents several steps."""


@dataclass(frozen=True)
class Panel:
    """A chart of metrics that are read together."""

    title: str
    unit: axes.Unit
    note: str
    metrics: tuple[Metric, ...]
    top: float = 0.0
    has_trend: bool = False
    has_parts: bool = False
    """Whether the parts of the mean reward are also drawn as curves if the reward has several parts."""


PANELS = (
    Panel(
        "Reward",
        axes.REWARD,
        "Mean over the completions of a step, trained on or not.",
        (Metric("mean", "objective/scores"),),
        has_trend=True,
        has_parts=True,
    ),
    Panel(
        "Correct rate",
        axes.SHARE,
        "The share of correct completions among the completions for which a verifier or an environment decides "
        "correctness.",
        (Metric("correct", "objective/verifiable_correct_rate"),),
        top=1.0,
        has_trend=True,
    ),
    Panel(
        "Completion length",
        axes.TOKENS,
        "A mean near the longest means that completions are cut off.",
        (
            Metric("mean", "val/sequence_lengths"),
            Metric("shortest", "val/sequence_lengths_min", Style.EDGE, min),
            Metric("longest", "val/sequence_lengths_max", Style.EDGE, max),
        ),
    ),
    Panel(
        "Step time",
        axes.SECONDS,
        "The learner is idle while it waits for groups.",
        (
            Metric("waiting for groups", "time/waiting_for_groups", Style.LAYER),
            Metric("training", "time/training", Style.LAYER),
            Metric("publishing", "time/publishing", Style.LAYER),
            Metric("whole step", "time/step"),
        ),
    ),
    Panel(
        "Log-probability gap",
        axes.NATS,
        "How far engine and learner disagree about a token; a growing gap means that they compute different policies.",
        (Metric("mean", "val/logprob_gap_mean"),),
    ),
    Panel(
        "Staleness",
        axes.STEPS,
        "Train steps between the weights that sampled a group and those that were trained.",
        (Metric("oldest group", "staleness/max", Style.LINE, max), Metric("mean", "staleness/mean")),
    ),
)


def draw_panels(
    rows: Sequence[Row], last_step: int, attempts: Mapping[int, str]
) -> Iterator[tuple[Panel, Chart | None]]:
    """Draws each panel over the train steps; None if no step has a metric of the panel."""
    size = _steps_per_point(len(rows))
    points = [rows[first : first + size] for first in range(0, len(rows), size)]
    steps = Steps(
        numbers=[int(point[-1]["step"]) for point in points],
        names=[_name(int(point[0]["step"]), int(point[-1]["step"])) for point in points],
        last=last_step,
        resumed=list(attempts),
    )
    for panel in PANELS:
        curves = []
        for metric in (*panel.metrics, *(_parts(rows) if panel.has_parts else ())):
            values = [_value(metric, point) for point in points]
            trend = _trend(values) if panel.has_trend and metric in panel.metrics else ()
            curves.append(Curve(metric.label, values, metric.style, trend))
        yield panel, draw(panel.title, panel.unit, panel.note, steps, curves, panel.top)


def how_to_read(num_steps: int, attempts: Mapping[int, str]) -> str:
    """Explains the points, bold lines and dotted lines of a run's charts; empty if there is nothing to explain."""
    size = _steps_per_point(num_steps)
    sentences = []
    if size > 1:
        sentences.append(f"Each point represents {size} steps.")
    if num_steps >= MIN_TREND_POINTS:
        sentences.append(f"The bold lines of reward and correct rate are means over {TREND_SHARE:.0%} of the run.")
    if attempts:
        places = ", ".join(f"step {step:,} ({words})" for step, words in attempts.items())
        sentences.append(f"Dotted lines mark the steps from which the run was resumed: {places}.")
    return " ".join(sentences)


def _parts(rows: Sequence[Row]) -> list[Metric]:
    """Returns the parts of the mean reward as metrics, as many as a chart has colors for."""
    names = part_metrics({name: 0.0 for row in rows for name in row})
    return [Metric(label, name) for label, name in names.items()][:MAX_PARTS]


def _steps_per_point(num_steps: int) -> int:
    return max(1, -(-num_steps // MAX_POINTS))


def _name(first: int, last: int) -> str:
    return f"step {last:,}" if first == last else f"steps {first:,}–{last:,}"


def _value(metric: Metric, point: Sequence[Row]) -> float | None:
    measured = [row[metric.name] for row in point if metric.name in row]
    return metric.of_several(measured) if measured else None


def _trend(values: Values) -> Values:
    """Returns the mean of each value and its neighbors on both sides; nothing if there are too few values."""
    if len(values) < MIN_TREND_POINTS:
        return ()
    reach = round(len(values) * TREND_SHARE / 2)
    around = [values[max(0, index - reach) : index + reach + 1] for index in range(len(values))]
    means = [[value for value in near if value is not None] for near in around]
    return [None if value is None else fmean(near) for value, near in zip(values, means, strict=True)]


def draw_evaluations(
    rows: Sequence[Row], last_step: int, attempts: Mapping[int, str], changes: Collection[int] = ()
) -> list[Chart]:
    """Draws the correct rate and mean reward of held-out questions, with intervals, and the parts of the reward.

    No line leads to the steps of `changes`, whose questions differ from the previous questions.
    """
    numbers = [int(row["step"]) for row in rows]
    breaks = [index for index, number in enumerate(numbers) if number in changes]
    steps = Steps(numbers, [_name(number, number) for number in numbers], last_step, list(attempts), breaks)
    correct, reward = (
        _with_intervals(rows, label, name)
        for label, name in (("correct", "eval/verifiable_correct_rate"), ("mean", "eval/scores"))
    )
    parts = [Curve(part.label, [row.get(part.name) for row in rows]) for part in _parts(rows)]
    charts = (
        draw("Correct on held-out questions", axes.SHARE, _note(correct, steps), steps, [correct], top=1.0),
        draw("Reward on held-out questions", axes.REWARD, _note(reward, steps), steps, [reward, *parts]),
    )
    return [chart for chart in charts if chart is not None]


def _with_intervals(rows: Sequence[Row], label: str, name: str) -> Curve:
    return Curve(label, [row.get(name) for row in rows], intervals=[_interval(row, name) for row in rows])


def _note(curve: Curve, steps: Steps) -> str:
    bars = "Bars are 95% confidence intervals." if any(curve.intervals) else ""
    others = " and ".join(steps.names[index] for index in steps.breaks)
    broken = f"No line leads to {others}, whose questions differ from the previous questions." if others else ""
    return " ".join(filter(None, (bars, broken)))


def _interval(row: Row, name: str) -> tuple[float, float] | None:
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return None if low is None or high is None else (low, high)
