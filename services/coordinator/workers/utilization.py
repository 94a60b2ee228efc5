"""Utilization of a kind of worker, from the work that the coordinator has sent and not got back."""

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

    @property
    def idle_share(self) -> float:
        return self.idle_s / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.duration_s if self.duration_s > 0 else 0.0


class Utilization:
    """Counts outstanding completions, tokens that came back, and the time without outstanding completions.

    All workers of a kind count as one: time is idle only when none of them has work.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_out = 0
        self._began = self._idle_since = clock()
        self._idle_s = 0.0
        self._num_tokens = 0

    def out(self, count: int = 1) -> None:
        """Adds completions that were sent."""
        if count and not self._num_out:
            self._idle_s += self._clock() - self._idle_since
        self._num_out += count

    def back(self, count: int = 1, *, num_tokens: int = 0) -> None:
        """Removes completions that came back, with their tokens, or will not come back."""
        self._num_out -= count
        self._num_tokens += num_tokens
        if count and not self._num_out:
            self._idle_since = self._clock()

    def take(self) -> Window:
        """Returns the work since the last call."""
        now = self._clock()
        if not self._num_out:
            self._idle_s += now - self._idle_since
            self._idle_since = now
        window = Window(now - self._began, self._idle_s, self._num_tokens)
        self._began, self._idle_s, self._num_tokens = now, 0.0, 0
        return window
