"""The gate between sampling and publishes, for runs that update no weights in flight.

    publish is due -> gate closed: groups inside go on sampling, others wait in front -> the last leaves
                                      -> publish -> gate open

With `weights.inflight_updates` the gate never closes.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from shoal.concurrency import Signal


class SamplingGate:
    """A gate that lets groups sample while no publish is due, and tells a publish when nothing is sampled."""

    def __init__(self, *, inflight_updates: bool) -> None:
        self._inflight_updates = inflight_updates
        self._open = asyncio.Event()
        self._open.set()
        self._changed = Signal()
        self.num_inside = 0
        """Groups that are being sampled."""

    async def enter(self) -> ExitStack:
        """Waits until the gate is open. Until the returned passage is closed, a publish waits."""
        while not self._open.is_set():  # It may have closed again before this task runs.
            await self._open.wait()
        self.num_inside += 1
        passage = ExitStack()
        passage.callback(self._leave)
        return passage

    def _leave(self) -> None:
        self.num_inside -= 1
        self._changed.notify()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Closes the gate while the block runs."""
        if not self._inflight_updates:
            self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    @property
    def is_clear(self) -> bool:
        """Whether weights may be updated now."""
        return self._inflight_updates or not self.num_inside

    async def cleared(self) -> None:
        """Waits until weights may be updated. Close the gate first, since groups may enter an open gate."""
        while not self.is_clear:
            await self._changed.wait()
