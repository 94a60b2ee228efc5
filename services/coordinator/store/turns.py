"""Turns of many watchers, so that the run between them keeps its time."""

import asyncio

PAUSE_S = 0.0005


class Turns:
    """Lets one watcher after the other go on, in the order in which they ask.

    Between two of them the event loop does everything else that is ready, so a thousand watchers of one event delay the
    run's own work by the time of one, not of a thousand. All together they get at most 2,000 turns a second; one that
    is alone waits for nothing.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._num_waiting = 0

    async def take(self) -> None:
        """Waits for a turn."""
        self._num_waiting += 1
        try:
            async with self._lock:
                await asyncio.sleep(PAUSE_S if self._num_waiting > 1 else 0)
        finally:
            self._num_waiting -= 1
