"""Mean and standard deviation of all values that a run has seen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Moments:
    """Count, mean and squared deviations of the values seen so far.

    Merges one batch at a time (Chan, Golub, LeVeque 1979), which is accurate where a sum of squares loses all digits.

    Example: `Moments().seen([1.0, 0.0]).seen([1.0])` has mean 2/3 and std(1) 0.577.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """The sum of squared differences from the mean; exactly 0 as long as all values are equal."""

    def seen(self, values: Sequence[float]) -> "Moments":
        """Returns the moments of the earlier values together with `values`."""
        if not values:
            return self
        count = self.count + len(values)
        if not self.squares and len({*values, *([self.mean] if self.count else [])}) == 1:
            return Moments(count, values[0], 0.0)
        mean = math.fsum(values) / len(values)
        gap = mean - self.mean
        squares = math.fsum((value - mean) ** 2 for value in values)
        merged = self.squares + squares + gap**2 * self.count * len(values) / count
        return Moments(count, self.mean + gap * len(values) / count, merged)

    def std(self, ddof: int) -> float:
        """Returns the standard deviation; 0 for equal values, and for too few values."""
        return math.sqrt(self.squares / (self.count - ddof)) if self.squares and self.count > ddof else 0.0
