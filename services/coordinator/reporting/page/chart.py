"""Charts over the steps of a run, as SVG shapes.

No library makes the shapes: matplotlib alone is as large as the rest of the base install, and would fix colors and text
size. These shapes have only class names, so the page's style sheet gives them light and dark colors, and larger text on
a phone.
"""

import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, groupby

from services.coordinator.reporting.page.axes import Scale, Unit, tick_step, ticks

WIDTH, HEIGHT = 460, 216
LEFT, RIGHT, TOP, BOTTOM = 46, 442, 14, 190
"""Edges of the plot, in the units of the SVG's view box. The labels of the axes are outside."""
MAX_MARKS = 40
"""Maximum number of points of a curve that has marks."""
_CAP = 4.0
"""Half the width of the ends of an interval, and of a point without neighbors."""

Values = Sequence[float | None]
"""A value for each point of the horizontal axis; None for points without a measurement."""


class Style(StrEnum):
    """The style of a curve."""

    LINE = "line"
    LAYER = "layer"
    """An area on top of the previous layers."""
    EDGE = "edge"
    """One of the two edges of a band."""


@dataclass(frozen=True)
class Curve:
    """One curve of a chart."""

    label: str
    values: Values
    style: Style = Style.LINE
    trend: Values = ()
    """The smoothed values, drawn in front of the values; empty for none."""
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
    """Indices of points to which no line leads, since they measure something else than the points before."""


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
    """The class names and the path of each shape, from back to front."""
    rows: tuple[Label, ...]
    columns: tuple[Label, ...]
    resumed: tuple[float, ...]
    """The positions from which the run was resumed."""
    latest: str
    """The name of the last point."""
    points: str
    """Positions and texts of all points, as the JSON that the script of the page reads."""


def draw(title: str, unit: Unit, note: str, steps: Steps, curves: Sequence[Curve], top: float = 0.0) -> Chart | None:
    """Draws curves over steps; None if nothing was measured. The vertical axis includes 0 and `top`."""
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
    """Returns the vertical axis, from 0 or less to a tick at or above a value, and the distance of the ticks."""
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        high = 1.0
    step = max(tick_step(low, high), unit.least_tick)
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, BOTTOM, TOP), step


def _heights(curves: Sequence[Curve]) -> list[Values]:
    """Returns the values of each curve as drawn: a layer lies on top of the previous layers."""
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
        yield "band", area_path(x, edges[0], edges[1], y)
    below: Values = [0.0] * len(x)
    for index, (curve, values) in enumerate(zip(curves, heights, strict=True)):
        if curve.style is Style.LAYER:
            yield _kind(index, curve), area_path(x, below, values, y)
            below = values
    for index, (curve, values) in enumerate(zip(curves, heights, strict=True)):
        if curve.style is Style.LINE:
            if curve.intervals:
                yield f"interval c{index}", bars_path(x, curve.intervals, y)
            yield _kind(index, curve) + (" faint" if curve.trend else ""), line_path(x, values, y, breaks)
            if curve.trend:
                yield _kind(index, curve), line_path(x, curve.trend, y)
            if len(values) <= MAX_MARKS:
                yield f"marks c{index}", marks_path(x, values, y)


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


def line_path(x: Sequence[float], values: Values, y: Scale, breaks: Collection[int] = ()) -> str:
    """Draws a line through the values, with gaps at missing values and before the indices of `breaks`."""
    pieces = [[(x[index], y(value)) for index, value in piece] for piece in _pieces(values, breaks)]
    return "".join("M" + _corners(_widened(piece)) for piece in pieces)


def marks_path(x: Sequence[float], values: Values, y: Scale) -> str:
    """Draws each value as a point: a line without length, which round ends turn into a disk."""
    return "".join(f"M{x[index]:g} {y(value):g}h0" for index, value in enumerate(values) if value is not None)


def area_path(x: Sequence[float], lower: Values, upper: Values, y: Scale) -> str:
    """Fills the area between two curves, wherever both have a value."""
    pairs = zip(lower, upper, strict=True)
    path = ""
    for piece in _pieces([None if high is None else low for low, high in pairs]):
        below = [(x[index], y(low)) for index, low in piece]
        above = [(x[index], y(high)) for index, _ in piece if (high := upper[index]) is not None]
        path += f"M{_corners(_widened(above))}L{_corners(_widened(below)[::-1])}Z"
    return path


def bars_path(x: Sequence[float], intervals: Sequence[tuple[float, float] | None], y: Scale) -> str:
    """Draws each interval as a bar with ends."""
    return "".join(
        f"M{middle - _CAP:g} {y(high):g}h{2 * _CAP:g}m{-_CAP:g} 0V{y(low):g}m{-_CAP:g} 0h{2 * _CAP:g}"
        for middle, interval in zip(x, intervals, strict=True)
        if interval is not None
        for low, high in [interval]
    )


def _pieces(values: Values, breaks: Collection[int] = ()) -> Iterator[list[tuple[int, float]]]:
    """Yields the sequences of adjacent values, with their indices. A new sequence begins at each index of `breaks`."""
    parts = list(accumulate(index in breaks for index in range(len(values))))
    for (is_gap, _), stretch in groupby(enumerate(values), key=lambda pair: (pair[1] is None, parts[pair[0]])):
        if not is_gap:
            yield [(index, value) for index, value in stretch if value is not None]


def _widened(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Turns a single point into a short dash, since the point would be invisible."""
    return points if len(points) > 1 else [(x + shift, y) for x, y in points for shift in (-_CAP, _CAP)]


def _corners(points: list[tuple[float, float]]) -> str:
    return "L".join(f"{x:g} {y:g}" for x, y in points)
