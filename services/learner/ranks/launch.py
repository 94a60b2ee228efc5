"""The launcher of a learner's ranks on one machine. On several machines torchrun starts them.

The restart of the ranks for another run is described in shoal/worker/reexec.py.
"""

import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from shoal.network import listening_socket

_log = logging.getLogger(__name__)

_STOP_S = 3.0
"""The time for followers to leave on their own."""
_NOTICE_S = 2.0
"""The time within which the death of a rank is noticed after the death broke a collective of the other ranks."""


def is_launched() -> bool:
    """Returns whether torchrun, or rank 0, started this process as one of several ranks."""
    return "RANK" in os.environ


def limit_threads(num_ranks: int) -> None:
    """Divides the machine's cores among its ranks, before torch is imported, unless OMP_NUM_THREADS is set.

    Threads that wait for one another sleep instead of spinning. If an engine uses the same cores, a spinning thread
    prevents the awaited thread from running (50 times slower, measured on two busy cores).
    """
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // num_ranks)))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def let_segments_grow() -> None:
    """Lets torch's GPU allocator grow its segments, before torch is imported, unless the environment has a setting.

    Each packed row has its own size. Segments of fixed size would fragment the memory until a row does not fit.
    """
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


class Followers:
    """The ranks other than rank 0, as its child processes. They end with rank 0, which notices when one fails."""

    def __init__(self, num_ranks: int, arguments: list[str]) -> None:
        """Creates the store of the rendezvous, and starts all ranks except rank 0 with the command line of rank 0."""
        from torch.distributed import TCPStore

        # Open the socket here and keep it, so that no other process takes the port.
        listening = listening_socket("127.0.0.1", 0)
        self.store = TCPStore(
            "127.0.0.1",
            listening.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(minutes=5),
            # TCPStore itself would listen on every interface.
            master_listen_fd=listening.detach(),
        )
        shared = {
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
        }
        # All ranks are on this machine: they need not be reachable from others.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        command = [sys.executable, "-m", "services.learner", *arguments, "--die-with-parent"]
        self._processes = [
            subprocess.Popen(
                command,
                env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                # Programs read the first line of rank 0's stdout, so the followers must not write to it.
                stdout=sys.stderr.fileno(),
            )
            for rank in range(1, num_ranks)
        ]
        self._deaths: queue.SimpleQueue[str] = queue.SimpleQueue()
        os.environ.update(shared | {"RANK": "0", "LOCAL_RANK": "0"})

    @property
    def pids(self) -> list[int]:
        """The process ids of all ranks except rank 0, by rank."""
        return [process.pid for process in self._processes]

    def watch(self, on_death: Callable[[str], None]) -> None:
        """Calls `on_death`, in another thread, if a rank fails."""
        for rank, process in enumerate(self._processes, start=1):
            threading.Thread(
                target=self._watch_one, args=(rank, process, on_death), name=f"watch-rank-{rank}", daemon=True
            ).start()

    def _watch_one(self, rank: int, process: subprocess.Popen[bytes], on_death: Callable[[str], None]) -> None:
        exit_code = process.wait()
        if exit_code:
            how = f"ended with exit code {exit_code}" if exit_code > 0 else f"was killed by {_signal_name(-exit_code)}"
            death = f"learner rank {rank} (pid {process.pid}) {how}"
            self._deaths.put(death)
            on_death(death)

    def explain(self, error: str) -> str:
        """Returns the death of a rank if `watch` notices one within a short time, otherwise the error.

        A rank that dies breaks the collectives of the other ranks, whose errors do not state the cause.
        """
        try:
            return self._deaths.get(timeout=_NOTICE_S)
        except queue.Empty:
            return error

    def close(self) -> None:
        """Waits for the ranks to leave, and kills the ranks that do not leave."""
        deadline = time.monotonic() + _STOP_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _log.warning("learner rank does not end; killing it", extra={"pid": process.pid})
                process.kill()
                process.wait()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
