"""Task groups that raise their first error, a signal for changes, and work on threads that is always awaited."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


@asynccontextmanager
async def first_error(tasks: asyncio.TaskGroup) -> AsyncIterator[asyncio.TaskGroup]:
    """Enters a task group that raises its first error itself, so that callers can catch the error by its type."""
    try:
        async with tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group


class Signal:
    """A signal that wakes every task that waits for the next change."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wakes the tasks that wait now."""
        self._next.set()
        self._next = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """The event of the next change. Take the event before reading the state, so that no change is missed."""
        return self._next

    async def wait(self, timeout_s: float | None = None) -> None:
        """Returns at the next change, or after the time-out."""
        # Do not use asyncio.wait_for: before Python 3.12 it can swallow a cancellation that comes with the event.
        try:
            async with asyncio.timeout(timeout_s):
                await self._next.wait()
        except TimeoutError:
            pass


async def to_the_end(work: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """Returns the result of work on a thread. A canceled call first waits for the end of the work."""
    running = asyncio.create_task(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(running)
    finally:
        await asyncio.wait([running])
