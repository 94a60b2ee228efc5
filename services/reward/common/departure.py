"""The orderly end of a reward service: it stops reading streams, and finishes the completions that it has received."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection
from typing import TypeVar

from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted

T = TypeVar("T")


class Departure:
    """Tells the streams of a service when to stop reading, and when to give up unfinished scores."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()
        self._over = asyncio.Event()

    def begin(self) -> None:
        """Ends the reading of every stream, including streams that are opened later."""
        self._begun.set()

    def end(self) -> None:
        """Gives up all unfinished scores."""
        self._over.set()

    async def reading(self, requests: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yields the messages of a stream. Raises `Aborted` when the service leaves."""
        while (message := await _before(self._begun, anext(requests, None))) is not None:
            if self._begun.is_set():
                raise leaving()
            yield message

    async def finished(self, tasks: Collection["asyncio.Task[None]"]) -> None:
        """Waits for all tasks. Raises the first error of a task. At `end`, cancels the tasks and raises `Aborted`."""
        await _before(self._over, _gathered(tasks))


async def _gathered(tasks: Collection["asyncio.Task[None]"]) -> None:
    # In a coroutine: a gather that is canceled itself reports an exception that was never retrieved.
    await asyncio.gather(*tasks)


async def _before(event: asyncio.Event, work: Awaitable[T]) -> T:
    """Returns the result of some work. If the event comes first, cancels the work and raises `Aborted`."""
    waiting, working = asyncio.ensure_future(event.wait()), asyncio.ensure_future(work)
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise leaving()
        return working.result()
    finally:
        waiting.cancel()
        working.cancel()


def leaving() -> Aborted:
    return Aborted("the reward service is shutting down", reason=ErrorReason.SHUTTING_DOWN)
