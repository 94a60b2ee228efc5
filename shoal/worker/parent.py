"""Ends a process when its parent ends."""

import ctypes
import multiprocessing
import os
import signal as signals
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(signal: signals.Signals = signals.SIGKILL, *, parent_pid: int | None = None) -> None:
    """Makes the kernel send `signal` to this process when its parent dies, even by `kill -9`. Linux only.

    If the parent (`parent_pid`, or multiprocessing's parent) died before this call, the process ends at once.

    The kernel watches the parent's *thread*: start children from a thread that lives as long as the process.
    """
    if not sys.platform.startswith("linux"):
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent_pid is None and (parent := multiprocessing.parent_process()) is not None:
        parent_pid = parent.pid
    if parent_pid is not None and os.getppid() != parent_pid:
        os.kill(os.getpid(), signal)
