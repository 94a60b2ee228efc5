"""The mean of a value over the last seconds."""

import math
import time
from collections.abc import Callable


class RecentMean:
    """The mean over time of a value that changes in steps. Earlier times have lower weights.

    After `window_s` without a change, the earlier values have a third of the weight.
    """

    def __init__(self, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._changed_at = 0.0
        self._value: float | None = None
        self._mean = 0.0

    def set(self, value: float) -> None:
        """Sets the value from now on."""
        self._mean = value if self._value is None else self._mean_now()
        self._value, self._changed_at = value, self._clock()

    @property
    def mean(self) -> float | None:
        """The mean; None before the first value."""
        return None if self._value is None else self._mean_now()

    def _mean_now(self) -> float:
        assert self._value is not None
        left = math.exp((self._changed_at - self._clock()) / self._window_s)
        return self._value + left * (self._mean - self._value)
