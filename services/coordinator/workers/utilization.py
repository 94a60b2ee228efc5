"""Utilization of a kind of worker, measured by the work that the coordinator has sent and not received back."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """The work of one kind of worker between two readings."""

    duration_s: float
    idle_s: float
    """Part of `duration_s` in which no completion was outstanding."""
    num_tokens: int
    """Completion tokens that came back."""
    mean_out: float
    """Mean number of outstanding completions over `duration_s`."""

    @property
    def idle_share(self) -> float:
        return self.idle_s / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.duration_s if self.duration_s > 0 else 0.0


class Utilization:
    """Counts outstanding completions, tokens that came back, and the time without outstanding completions.

    All workers of a kind count as one: time is idle only when none of them has work. So a few long completions hide
    that most workers wait; `Window.mean_out` shows it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_out = 0
        self._began = self._counted_until = clock()
        self._idle_s = 0.0
        self._out_s = 0.0
        self._num_tokens = 0

    def out(self, count: int = 1) -> None:
        """Adds completions that were sent."""
        self._count_time()
        self._num_out += count

    def back(self, count: int = 1, *, num_tokens: int = 0) -> None:
        """Removes completions that came back with `num_tokens` tokens, or that will not come back."""
        self._count_time()
        self._num_out -= count
        self._num_tokens += num_tokens

    def take(self) -> Window:
        """Returns the work since the last call."""
        self._count_time()
        duration_s = self._counted_until - self._began
        mean_out = self._out_s / duration_s if duration_s > 0 else float(self._num_out)
        window = Window(duration_s, self._idle_s, self._num_tokens, mean_out)
        self._began, self._idle_s, self._out_s, self._num_tokens = self._counted_until, 0.0, 0.0, 0
        return window

    def _count_time(self) -> None:
        """Counts the time since the last change for the completions that were outstanding."""
        now = self._clock()
        passed_s, self._counted_until = now - self._counted_until, now
        self._out_s += self._num_out * passed_s
        if not self._num_out:
            self._idle_s += passed_s


class Samples:
    """Collects values that arrive at irregular times, and gives their mean to a reader."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._num = 0
        self._last: float | None = None

    def add(self, value: float) -> None:
        """Adds a value."""
        self._sum += value
        self._num += 1
        self._last = value

    def take(self) -> float | None:
        """Returns the mean of the values since the last call, or the last value if none came; None before any value."""
        mean = self._sum / self._num if self._num else self._last
        self._sum, self._num = 0.0, 0
        return mean
