"""Charts over the steps of a run, as SVG shapes.

The shapes are made here and not by a library. The base install has no such library: matplotlib alone is as large as the
rest of it. A library would also fix the colors and the text size of the chart. These shapes have only class names, so
the page's style sheet gives them light and dark colors, and larger text on a phone.
"""

import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from services.coordinator.reporting.page import paths
from services.coordinator.reporting.page.axes import Scale, Unit, tick_step, ticks
from services.coordinator.reporting.page.paths import Values

WIDTH, HEIGHT = 460, 216
LEFT, RIGHT, TOP, BOTTOM = 46, 442, 14, 190
"""Edges of the plot, in the units of the SVG's view box. The labels of the axes are outside."""
MAX_MARKS = 40
"""Most points of a curve with marks."""


class Style(StrEnum):
    """The style of a curve."""

    LINE = "line"
    LAYER = "layer"
    """An area on top of the layers before it."""
    EDGE = "edge"
    """One of the two edges of a band."""


@dataclass(frozen=True)
class Curve:
    """One curve of a chart."""

    label: str
    values: Values
    style: Style = Style.LINE
    trend: Values = ()
    """The values without their noise, drawn in front of them; empty for none."""
    intervals: Sequence[tuple[float, float] | None] = ()
    """The interval around each value, drawn as a bar; empty for none."""


@dataclass(frozen=True)
class Steps:
    """The horizontal axis."""

    numbers: Sequence[int]
    """The step of each point, in order."""
    names: Sequence[str]
    """The name of each point: "step 8", or "steps 5–8"."""
    last: int
    """The end of the axis, which all charts of a run share."""
    resumed: Sequence[int]
    """The steps that the run was resumed from."""
    breaks: Collection[int] = ()
    """Indices of points to which no line leads, because they measure something else than the points before them."""


@dataclass(frozen=True)
class Label:
    """A text at a position of an axis."""

    position: float
    text: str


@dataclass(frozen=True)
class Entry:
    """A curve in the legend."""

    kind: str
    """The class names of the curve."""
    label: str
    latest: str
    """The last value of the curve."""


@dataclass(frozen=True)
class Chart:
    """A chart, ready for the template."""

    title: str
    unit: str
    note: str
    description: str
    """The chart in words, for readers who cannot see it."""
    entries: tuple[Entry, ...]
    shapes: tuple[tuple[str, str], ...]
    """Class names and path of each shape, from back to front."""
    rows: tuple[Label, ...]
    columns: tuple[Label, ...]
    resumed: tuple[float, ...]
    """The positions from which the run was resumed."""
    latest: str
    """The name of the last point."""
    points: str
    """Positions and texts of all points, as the JSON that the script of the page reads."""


def draw(title: str, unit: Unit, note: str, steps: Steps, curves: Sequence[Curve], top: float = 0.0) -> Chart | None:
    """Draws curves over steps; None if nothing was measured. The vertical axis has 0 and `top`."""
    heights = _heights(curves)
    measured = [value for values in heights for value in values if value is not None]
    if not measured:
        return None
    x = Scale(0, max(steps.last, 1), LEFT, RIGHT)
    y, step = _vertical(min(measured), max([top, *measured]), unit)
    positions = [x(number) for number in steps.numbers]
    return Chart(
        title=title,
        unit=unit.name,
        note=note,
        description="; ".join(_describe(curve, steps, unit) for curve in curves),
        entries=tuple(
            Entry(_kind(index, curve), curve.label, _text(curve, -1, unit)) for index, curve in enumerate(curves)
        ),
        shapes=tuple(_shapes(curves, heights, positions, y, steps.breaks)),
        rows=tuple(Label(y(value), unit.tick(value)) for value in ticks(y.low, y.high, step)),
        columns=tuple(Label(x(value), f"{value:,.0f}") for value in ticks(0, x.high, math.ceil(tick_step(0, x.high)))),
        resumed=tuple(x(number) for number in steps.resumed),
        latest=steps.names[-1],
        points=_points(curves, heights, steps.names, positions, y, unit),
    )


def _points(
    curves: Sequence[Curve], heights: Sequence[Values], names: Sequence[str], x: Sequence[float], y: Scale, unit: Unit
) -> str:
    drawn = [
        {
            "y": [None if value is None else y(value) for value in values],
            "text": [_text(curve, index, unit) for index in range(len(values))],
        }
        for curve, values in zip(curves, heights, strict=True)
    ]
    return json.dumps({"x": x, "names": names, "curves": drawn}, separators=(",", ":"))


def _vertical(low: float, high: float, unit: Unit) -> tuple[Scale, float]:
    """Returns the vertical axis from 0, or less, to a tick at or above a value; and the distance of its ticks."""
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        high = 1.0
    step = max(tick_step(low, high), unit.least_tick)
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, BOTTOM, TOP), step


def _heights(curves: Sequence[Curve]) -> list[Values]:
    """Returns the values of each curve as drawn: a layer lies on top of the layers before it."""
    heights: list[Values] = []
    below: Values = ()
    for curve in curves:
        if curve.style is Style.LAYER:
            below = _sums(below, curve.values) if below else curve.values
        heights.append(below if curve.style is Style.LAYER else curve.values)
    return heights


def _sums(first: Values, second: Values) -> Values:
    return [None if a is None or b is None else a + b for a, b in zip(first, second, strict=True)]


def _shapes(
    curves: Sequence[Curve], heights: Sequence[Values], x: Sequence[float], y: Scale, breaks: Collection[int]
) -> Iterator[tuple[str, str]]:
    """Yields class names and path of each shape: first areas, then lines."""
    edges = [values for curve, values in zip(curves, heights, strict=True) if curve.style is Style.EDGE]
    if edges:
        yield "band", paths.area(x, edges[0], edges[1], y)
    below: Values = [0.0] * len(x)
    for index, (curve, values) in enumerate(zip(curves, heights, strict=True)):
        if curve.style is Style.LAYER:
            yield _kind(index, curve), paths.area(x, below, values, y)
            below = values
    for index, (curve, values) in enumerate(zip(curves, heights, strict=True)):
        if curve.style is Style.LINE:
            if curve.intervals:
                yield f"interval c{index}", paths.bars(x, curve.intervals, y)
            yield _kind(index, curve) + (" faint" if curve.trend else ""), paths.line(x, values, y, breaks)
            if curve.trend:
                yield _kind(index, curve), paths.line(x, curve.trend, y)
            if len(values) <= MAX_MARKS:
                yield f"marks c{index}", paths.marks(x, values, y)


def _kind(index: int, curve: Curve) -> str:
    return f"{curve.style} c{index}"


def _text(curve: Curve, index: int, unit: Unit) -> str:
    value = curve.values[index]
    if value is None:
        return "–"
    interval = curve.intervals[index] if curve.intervals else None
    return unit.value(value) + (f" ({unit.value(interval[0])} to {unit.value(interval[1])})" if interval else "")


def _describe(curve: Curve, steps: Steps, unit: Unit) -> str:
    """Describes a curve by its first and last value."""
    measured = [index for index, value in enumerate(curve.values) if value is not None]
    if not measured:
        return f"{curve.label}: not measured"
    first, last = measured[0], measured[-1]
    ends = [f"{_text(curve, index, unit)} at {steps.names[index]}" for index in (first, last)]
    return f"{curve.label}: {', '.join(ends)}"
