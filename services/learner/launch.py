"""Starts the ranks of a learner that has one machine to itself. On several machines torchrun does it."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

_log = logging.getLogger(__name__)

_STOP_S = 3.0
"""Time that followers have to leave by themselves."""


def is_launched() -> bool:
    """Whether torchrun, or rank 0, has started this process as one of several ranks."""
    return "RANK" in os.environ


def limit_threads(num_ranks: int) -> None:
    """Shares the cores among the ranks of this machine, unless OMP_NUM_THREADS says otherwise. Before torch.

    Threads that wait for each other sleep instead of spinning: where an engine shares the cores, a thread that spins
    keeps the one it waits for from running (50 times slower, measured on two cores that were in use).
    """
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // num_ranks)))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


class Followers:
    """The ranks beside rank 0, as its children: they end with it, and it learns when one of them ends."""

    def __init__(self, num_ranks: int, arguments: list[str]) -> None:
        """Makes the store that the ranks meet over, and starts ranks 1 and up with rank 0's command line."""
        from torch.distributed import TCPStore

        # Held open from here on, so that nobody takes the port in between.
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5))
        shared = {
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
        }
        # All ranks are here: nothing of theirs need be reachable from elsewhere.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        command = [sys.executable, "-m", "services.learner", *arguments, "--die-with-parent"]
        self._processes = [
            subprocess.Popen(
                command,
                env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                # Rank 0's first line on stdout is read by programs.
                stdout=sys.stderr.fileno(),
            )
            for rank in range(1, num_ranks)
        ]
        os.environ.update(shared | {"RANK": "0", "LOCAL_RANK": "0"})

    @property
    def pids(self) -> list[int]:
        """By rank, from 1."""
        return [process.pid for process in self._processes]

    def watch(self, on_death: Callable[[str], None]) -> None:
        """Calls `on_death`, in another thread, if a rank ends without having been told to."""
        for rank, process in enumerate(self._processes, start=1):
            threading.Thread(
                target=_watch_one, args=(rank, process, on_death), name=f"watch-rank-{rank}", daemon=True
            ).start()

    def close(self) -> None:
        """Waits for the ranks to leave, and ends those that do not."""
        give_up = time.monotonic() + _STOP_S
        for process in self._processes:
            try:
                process.wait(max(0.0, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                _log.warning("learner rank does not leave", extra={"pid": process.pid})
                process.kill()
                process.wait()


def _watch_one(rank: int, process: subprocess.Popen[bytes], on_death: Callable[[str], None]) -> None:
    exit_code = process.wait()
    if exit_code:
        on_death(f"learner rank {rank} (pid {process.pid}) ended with exit code {exit_code}")
