"""Task groups whose errors can be told apart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def first_error(tasks: asyncio.TaskGroup) -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises its first error as it is, not wrapped in a group, so that callers can name it."""
    try:
        async with tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group


class Signal:
    """Wakes all who wait for the next change, however many and whenever they come."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wakes those who wait now."""
        self._next.set()
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """Is set at the next change. Take it before looking at what may change, and nothing is missed."""
        return self._next

    async def wait(self, timeout_s: float | None = None) -> None:
        """Returns at the next change, or after the time-out."""
        # Not asyncio.wait_for: before Python 3.12 it can swallow a cancellation that comes with the event.
        try:
            async with asyncio.timeout(timeout_s):
                await self._next.wait()
        except TimeoutError:
            pass
