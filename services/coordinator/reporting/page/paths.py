"""Curves as the path data of SVG."""

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, groupby

from services.coordinator.reporting.page.axes import Scale

Values = Sequence[float | None]
"""A value for each point of the horizontal axis; None for points without a measurement."""
_CAP = 4.0
"""Half the width of the ends of an interval, and of a point without neighbors."""


def line(x: Sequence[float], values: Values, y: Scale, breaks: Collection[int] = ()) -> str:
    """Draws a line through the values, with gaps at missing values and before the indices of `breaks`."""
    pieces = [[(x[index], y(value)) for index, value in piece] for piece in _pieces(values, breaks)]
    return "".join("M" + _corners(_widened(piece)) for piece in pieces)


def marks(x: Sequence[float], values: Values, y: Scale) -> str:
    """Draws each value as a point: a line without length, which round ends turn into a disk."""
    return "".join(f"M{x[index]:g} {y(value):g}h0" for index, value in enumerate(values) if value is not None)


def area(x: Sequence[float], lower: Values, upper: Values, y: Scale) -> str:
    """Fills the area between two curves, wherever both have a value."""
    pairs = zip(lower, upper, strict=True)
    path = ""
    for piece in _pieces([None if high is None else low for low, high in pairs]):
        below = [(x[index], y(low)) for index, low in piece]
        above = [(x[index], y(high)) for index, _ in piece if (high := upper[index]) is not None]
        path += f"M{_corners(_widened(above))}L{_corners(_widened(below)[::-1])}Z"
    return path


def bars(x: Sequence[float], intervals: Sequence[tuple[float, float] | None], y: Scale) -> str:
    """Draws each interval as a bar with ends."""
    return "".join(
        f"M{middle - _CAP:g} {y(high):g}h{2 * _CAP:g}m{-_CAP:g} 0V{y(low):g}m{-_CAP:g} 0h{2 * _CAP:g}"
        for middle, interval in zip(x, intervals, strict=True)
        if interval is not None
        for low, high in [interval]
    )


def _pieces(values: Values, breaks: Collection[int] = ()) -> Iterator[list[tuple[int, float]]]:
    """Yields the runs of adjacent values, with their indices; a new run begins at each of `breaks`."""
    parts = list(accumulate(index in breaks for index in range(len(values))))
    for (is_gap, _), stretch in groupby(enumerate(values), key=lambda pair: (pair[1] is None, parts[pair[0]])):
        if not is_gap:
            yield [(index, value) for index, value in stretch if value is not None]


def _widened(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Turns a single point, which would be invisible, into a short dash."""
    return points if len(points) > 1 else [(x + shift, y) for x, y in points for shift in (-_CAP, _CAP)]


def _corners(points: list[tuple[float, float]]) -> str:
    return "L".join(f"{x:g} {y:g}" for x, y in points)
