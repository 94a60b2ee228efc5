"""The processes that an environment's process has started: found by a mark in their environment variables.

The process group ends with the process; this ends what has left the group, as daemons do.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

MARK_VARIABLE = "SHOAL_ENVIRONMENT_PROCESS"


def descendants(mark: str) -> list[int]:
    """Returns the pids of the living processes that carry a mark."""
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # It has ended, or belongs to somebody else.
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def end_descendants(mark: str) -> None:
    """Kills them all, also those that they start meanwhile. Waits at most a second until they are gone."""
    for _ in range(20):
        pids = descendants(mark)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
