"""The clock of an episode, which stops in a pause of the run and while the episode waits for a worker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

_POLL_S = 0.25
"""Shortest time between two looks, in seconds, while the clock is stopped just before the limit."""


class EpisodeClock:
    """Measures the wall time of an episode, and ends the block under it when the time is over."""

    def __init__(self, limit_s: float, running_s: Callable[[], float]) -> None:
        """`running_s` is a clock that stops in a pause."""
        self._limit_s = limit_s
        self._running_s = running_s
        self._used_s = 0.0
        self._since = running_s()
        """When the clock last started; meaningless while it is stopped."""
        self._num_waits = 0
        """Number of blocks that have stopped the clock; several calls of an agent wait at the same time."""

    @property
    def used_s(self) -> float:
        """The time so far."""
        return self._used_s + (0.0 if self._num_waits else self._running_s() - self._since)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the clock while the block runs. The clock restarts when the last such block has ended."""
        self._used_s = self.used_s
        self._num_waits += 1
        try:
            yield
        finally:
            self._num_waits -= 1
            self._since = self._running_s()

    @contextlib.asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Ends the block with `TimeoutError` when the time is over."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as scope:
            timer = loop.call_later(self._limit_s, lambda: check())

            def check() -> None:
                nonlocal timer
                left_s = self._limit_s - self.used_s
                if left_s > 0:
                    timer = loop.call_later(max(left_s, _POLL_S), check)
                elif not scope.expired():
                    scope.reschedule(loop.time())

            try:
                yield
            finally:
                timer.cancel()
