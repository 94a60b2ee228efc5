"""Signs of life (beats) of the ranks. If a rank's beats are missing, its process or machine is stopped.

Each rank but rank 0 has a thread that sends beats, even while torch computes, a collective waits, or a disk writes.
"""

import asyncio
import contextlib
import threading
import time

from services.learner.ranks.process_group import ProcessGroup

BEAT_S = 5.0
_MAX_MISSED = 12
SILENT_S = _MAX_MISSED * BEAT_S
"""The seconds without a beat after which a rank counts as stopped. A rank's beat thread has no other work."""


def begin_beats(process_group: ProcessGroup) -> None:
    """Starts a thread that sends beats until the process ends. A beat that does not reach the store is skipped."""

    def beat() -> None:
        while True:
            with contextlib.suppress(RuntimeError):
                process_group.beat()
            time.sleep(BEAT_S)

    threading.Thread(target=beat, name="beats", daemon=True).start()


async def until_silent(process_group: ProcessGroup) -> int:
    """Waits, on rank 0, until the beats of another rank are missing. Returns that rank."""
    listener = Listener(process_group)
    rank: int | None = None
    while rank is None:
        await asyncio.sleep(BEAT_S)
        rank = await asyncio.to_thread(listener.silent_rank)
    return rank


class Listener:
    """Listens to the beats of the other ranks, on rank 0.

    Silence is counted in calls, not in seconds. So if all ranks stop together and continue, no rank counts as silent.
    """

    def __init__(self, process_group: ProcessGroup) -> None:
        self._process_group = process_group
        self._heard: dict[int, tuple[bytes, int]] = {}
        """The last beat of each rank, and the number of looks since then that found no newer beat."""

    def silent_rank(self) -> int | None:
        """Looks for new beats. Call it every `BEAT_S`. Returns a rank without a new beat for `SILENT_S`, or None."""
        for rank, beat in self._process_group.last_beats().items():
            last, num_missed = self._heard.get(rank, (None, -1))
            self._heard[rank] = (beat, num_missed + 1 if beat == last else 0)
        return next((rank for rank, (_, num_missed) in self._heard.items() if num_missed >= _MAX_MISSED), None)
