"""A group whose completions arrive one after the other, for those who score them and those who wait for them."""

from collections.abc import AsyncIterator, Iterable

from shoal.concurrency import Signal
from shoal.rollout import Completion


class GrowingGroup:
    """The completions of one group as they arrive. Each reader gets all of them from the first on."""

    def __init__(self, completions: Iterable[Completion] = ()) -> None:
        self.completions = list(completions)
        self._complete = False
        self._changed = Signal()

    def add(self, completion: Completion) -> None:
        """Adds a completion, and wakes the readers."""
        self.completions.append(completion)
        self._changed.notify()

    def complete(self) -> None:
        """Marks the group as complete: no more completions come."""
        self._complete = True
        self._changed.notify()

    async def begun(self) -> None:
        """Returns when a completion has arrived, or none will."""
        while not (self.completions or self._complete):
            await self._changed.wait()

    async def completed(self) -> None:
        """Returns when no more completions come."""
        while not self._complete:
            await self._changed.wait()

    async def read(self) -> AsyncIterator[Completion]:
        """Yields all completions, and waits for those that have not arrived."""
        index = 0
        while True:
            changed = self._changed.next
            while index < len(self.completions):
                yield self.completions[index]
                index += 1
            if self._complete:
                return
            await changed.wait()
