"""Beats of the ranks, by which rank 0 notices one whose process or machine stands still.

Each other rank has a thread for them, which beats while torch computes, waits in a collective, or writes to a slow
disk. So silence does not depend on how long any work takes.
"""

import contextlib
import threading
import time
from collections.abc import Callable

from services.learner.ranks.process_group import ProcessGroup

BEAT_S = 5.0
SILENT_S = 60.0
"""A rank without a beat for so long stands still: a step of its thread takes no time."""


def begin_beats(process_group: ProcessGroup) -> None:
    """Begins to beat, until the process ends. A beat that does not reach the store is left out."""

    def beat() -> None:
        while True:
            with contextlib.suppress(RuntimeError):
                process_group.beat()
            time.sleep(BEAT_S)

    threading.Thread(target=beat, name="beats", daemon=True).start()


class Listener:
    """Listens to the beats of the other ranks. On rank 0."""

    def __init__(self, process_group: ProcessGroup, now: Callable[[], float] = time.monotonic) -> None:
        self._process_group = process_group
        self._now = now
        self._heard: dict[int, tuple[bytes, float]] = {}
        """The last beat of each rank, and when it was new."""

    def silent_rank(self) -> int | None:
        """Returns a rank of which `SILENT_S` have brought no beat since it was first listened to; None without one."""
        beats, now = self._process_group.last_beats(), self._now()
        for rank, beat in beats.items():
            if self._heard.get(rank, (None, now))[0] != beat:
                self._heard[rank] = beat, now
        return next((rank for rank, (_, since) in self._heard.items() if now - since >= SILENT_S), None)
