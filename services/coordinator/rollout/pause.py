"""The pause of a run, and a clock that stops in it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator


class Pause:
    """Whether a run is paused; what samples for it waits here."""

    def __init__(self) -> None:
        self.num_pauses = 0
        """Pauses so far. Where it has changed meanwhile, a deadline that passed does not count."""
        self._stood_still_s = 0.0
        """Time that the run has stood still, up to `_stopped_at`."""
        self._stopped_at = 0.0
        """Time at which the run stood still last."""
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._moving = asyncio.Event()
        self._moving.set()
        self._training: set[asyncio.Timeout] = set()
        """Sampling for training that is under way."""

    @property
    def is_paused(self) -> bool:
        """Whether the run is paused."""
        return not self._unpaused.is_set()

    @property
    def stands_still(self) -> bool:
        """Whether the run is paused, and not even samples answers for an evaluation."""
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

    def resume(self) -> None:
        """Ends the pause."""
        self._move()
        self._unpaused.set()

    def begin_evaluation_in_pause(self) -> None:
        """Lets a paused run sample the answers of an evaluation. What is sampled for training ends where it is."""
        self._move()
        for scope in self._training:
            if not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())

    def end_evaluation_in_pause(self) -> None:
        """Lets a run that is still paused stand still again."""
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
        """Ends what runs inside, without an error, when a paused run begins to sample for an evaluation."""
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
