"""Axes of a chart: scales, round ticks, and numbers as people read them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

MAX_INTERVALS = 5
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Scale:
    """Maps values to positions along an axis, linearly."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Returns the position of a value, to a tenth of a unit."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def tick_step(low: float, high: float) -> float:
    """Returns the distance of round ticks that cut a range into at most `MAX_INTERVALS` parts."""
    rough = (high - low) / MAX_INTERVALS
    power = 10.0 ** math.floor(math.log10(rough))
    # 10 is for a range that rounding has made a little longer than 5 powers.
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))


def ticks(low: float, high: float, step: float) -> list[float]:
    """Returns the multiples of a step within a range."""
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


class Unit(NamedTuple):
    """The format of a chart's values."""

    name: str
    value: Callable[[float], str]
    tick: Callable[[float], str]
    least_tick: float = 0.0
    """The smallest distance of two ticks."""


def plain(value: float) -> str:
    """Writes three significant digits: 0.0361, 12.4, 4,096."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def signed(value: float) -> str:
    """Writes three significant digits with a sign: +0.87, or 0."""
    sign = MINUS if value < 0 else "+" if value > 0 else ""
    return sign + plain(abs(value))


def points(change: float) -> str:
    """Writes the change of a share in points: +39.0."""
    return f"{100 * change:+.1f}".replace("-", MINUS)


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _share(value: float) -> str:
    return f"{100 * value:.1f}%"


def _tick(value: float) -> str:
    return f"{value:,g}".replace("-", MINUS, 1)


def _share_tick(value: float) -> str:
    return f"{100 * value:g}%"


SHARE = Unit("share", _share, _share_tick)
REWARD = Unit("per completion", plain, _tick)
SECONDS = Unit("seconds", _seconds, _tick)
TOKENS = Unit("tokens", plain, _tick)
NATS = Unit("nats", plain, _tick)
STEPS = Unit("steps", plain, _tick, least_tick=1)
