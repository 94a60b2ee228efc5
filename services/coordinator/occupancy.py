"""How busy a kind of worker is, as the coordinator sees it from what it has asked for and not got."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """What one kind of worker did over a while."""

    duration_s: float
    idle_s: float
    """Of these, without anything to do."""
    num_tokens: int
    """Completion tokens that came back."""

    @property
    def idle_share(self) -> float:
        return self.idle_s / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.duration_s if self.duration_s > 0 else 0.0


class Occupancy:
    """Counts completions that are out, tokens that come back, and the time in which nothing is out.

    All workers of a kind are one here: the time counts as idle only when none of them has anything to do.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_out = 0
        self._began = self._idle_since = clock()
        self._idle_s = 0.0
        self._num_tokens = 0

    def out(self, count: int = 1) -> None:
        """So many completions are asked for."""
        if count and not self._num_out:
            self._idle_s += self._clock() - self._idle_since
        self._num_out += count

    def back(self, count: int = 1, *, num_tokens: int = 0) -> None:
        """So many have come back, with their tokens, or will not come."""
        self._num_out -= count
        self._num_tokens += num_tokens
        if count and not self._num_out:
            self._idle_since = self._clock()

    def take(self) -> Window:
        """What happened since the last call."""
        now = self._clock()
        if not self._num_out:
            self._idle_s += now - self._idle_since
            self._idle_since = now
        window = Window(now - self._began, self._idle_s, self._num_tokens)
        self._began, self._idle_s, self._num_tokens = now, 0.0, 0
        return window
