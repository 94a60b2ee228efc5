"""The departure of a reward service that was told to end: streams are handed back, completions in work are finished."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection
from typing import TypeVar

from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted

T = TypeVar("T")


class Departure:
    """Tells the streams of a service when to read no more, and when to give up what they score."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()
        self._over = asyncio.Event()

    def begin(self) -> None:
        """Ends the reading of every stream, those that are opened later included."""
        self._begun.set()

    def end(self) -> None:
        """Gives up what is still being scored."""
        self._over.set()

    async def reading(self, requests: AsyncIterator[T]) -> AsyncIterator[T]:
        """Yields the messages of a stream. Raises `Aborted` as soon as the service leaves."""
        while (message := await _before(self._begun, anext(requests, None))) is not None:
            if self._begun.is_set():
                raise leaving()
            yield message

    async def finished(self, tasks: Collection["asyncio.Task[None]"]) -> None:
        """Waits for all tasks, and raises their first error; cancels them and raises `Aborted` at `end`."""
        await _before(self._over, _gathered(tasks))


async def _gathered(tasks: Collection["asyncio.Task[None]"]) -> None:
    await asyncio.gather(*tasks)


async def _before(event: asyncio.Event, work: Awaitable[T]) -> T:
    """Returns the result of some work. Cancels it and raises `Aborted` when the event comes before."""
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
