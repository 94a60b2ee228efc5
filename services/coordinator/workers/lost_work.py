"""Work that workers lose: how often the work failed, when it is tried again, and when it is abandoned.

    async for number in lost_work:  # After a pause, and once the run goes on.
        try:
            return await work(number)
        except WorkFailed as error:
            if lost_work.count(error):
                raise

A prompt that kills engines must not kill one after another. A group that nobody can finish must not block later groups.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Self

FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0


class WorkFailed(Exception):
    """A worker could not finish its part of a group; another one may try."""

    def __init__(self, worker: str, reason: str, *, is_loss: bool = True) -> None:
        """`is_loss` is False if the group certainly did not cause the failure, for example if a worker shuts down."""
        super().__init__(f"{worker}: {reason}")
        self.is_loss = is_loss


async def _at_once() -> None:
    """Waits for nothing."""


class LostWork:
    """Counts how often one group, episode or turn was lost, and yields the numbers of its tries, from 0 on."""

    def __init__(
        self,
        max_losses: int,
        goes_on: Callable[[], Awaitable[None]] = _at_once,
        stopped: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """Before each try except the first, waits for `goes_on` in the context of `stopped`, which stops a clock."""
        self._max_losses = max_losses
        self._goes_on, self._stopped = goes_on, stopped
        self._num_tries = 0
        self._furthest = 0
        self.num_losses = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        if self._num_tries:
            with self._stopped():
                await self.pause()
                await self._goes_on()
        self._num_tries += 1
        return self._num_tries - 1

    def count(self, error: WorkFailed, progress: int = 0) -> bool:
        """Counts a failure if it is a loss; returns whether the work is to be abandoned.

        `progress` is how far the work had come, in any unit. A loss at a later point than all earlier losses counts as
        the first again, since a kill from outside may come at any point.
        """
        if error.is_loss:
            if progress > self._furthest:
                self._furthest, self.num_losses = progress, 0
            self.num_losses += 1
        return self.num_losses >= self._max_losses

    async def pause(self) -> None:
        """Waits: longer with each loss, not at all without one."""
        if self.num_losses:
            await asyncio.sleep(min(FIRST_PAUSE_S * 2.0 ** (self.num_losses - 1), MAX_PAUSE_S))
