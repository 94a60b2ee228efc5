"""The pause of a run, and a clock that stops during a pause."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from shoal.concurrency import Signal


class Pause:
    """The pause of a run, in which sampling waits."""

    def __init__(self) -> None:
        self.num_pauses = 0
        """Number of pauses so far. A missed deadline does not count if the number of pauses changed meanwhile."""
        self._stood_still_s = 0.0
        """Seconds for which the run has stood still, up to `_stopped_at`."""
        self._stopped_at = 0.0
        """Time at which the run last stopped."""
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._moving = asyncio.Event()
        self._moving.set()
        self._training: set[asyncio.Timeout] = set()
        """Timeouts of the sampling for training in progress."""
        self.changed = Signal()
        """Notified of events that concern the loops: pauses and requests, a learner that leaves, a finished checkpoint.
        """

    @property
    def is_paused(self) -> bool:
        """Whether the run is paused."""
        return not self._unpaused.is_set()

    @property
    def stands_still(self) -> bool:
        """Whether the run is paused and samples no answers for an evaluation either."""
        return not self._moving.is_set()

    def running_s(self) -> float:
        """Returns the time of a clock that stops while the run stands still; use differences."""
        return (self._stopped_at if self.stands_still else time.monotonic()) - self._stood_still_s

    def pause(self) -> None:
        """Pauses the run."""
        if not self.is_paused:
            self._stand_still()
        self.num_pauses += 1
        self._unpaused.clear()
        self.changed.notify()

    def resume(self) -> None:
        """Ends the pause."""
        self._move()
        self._unpaused.set()
        self.changed.notify()

    def begin_evaluation_in_pause(self) -> None:
        """Lets a paused run sample the answers of an evaluation. Sampling for training stops at its current token."""
        self._move()
        for scope in self._training:
            if not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())

    def end_evaluation_in_pause(self) -> None:
        """Stops a run again if the run is still paused."""
        if self.is_paused:
            self._stand_still()

    def _stand_still(self) -> None:
        if not self.stands_still:
            self._stopped_at = time.monotonic()
            self._moving.clear()

    def _move(self) -> None:
        if self.stands_still:
            self._stood_still_s += time.monotonic() - self._stopped_at
            self._moving.set()

    @contextlib.asynccontextmanager
    async def sampling_for_training(self) -> AsyncIterator[None]:
        """Ends the block, without an error, when a paused run begins to sample for an evaluation."""
        is_in_the_way = self.is_paused and not self.stands_still
        scope = asyncio.timeout(0 if is_in_the_way else None)
        self._training.add(scope)
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            self._training.discard(scope)

    async def unpaused(self) -> None:
        """Returns when the run is not paused."""
        await self._unpaused.wait()

    async def moving(self) -> None:
        """Returns when the run does not stand still."""
        await self._moving.wait()
