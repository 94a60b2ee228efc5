"""The processes that a process has started: its children, and all descendants, which have a mark in their environment.

The process group ends with the process. This module ends processes that have left the group, as daemons do. If the
service is killed, the environments' processes end, but not their descendants. A separate process ends these:

    python -I -S descendants.py MARK            waits until its standard input ends, as it does with the service
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

MARK_VARIABLE = "SHOAL_ENVIRONMENT_PROCESS"
_ROUNDS, _PAUSE_S = 20, 0.05


def children(pid: int) -> list[int]:
    """Returns the pids of the children of a process; empty if it has ended. psutil would examine every process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


class Guard:
    """Ends all marked processes when this process is gone, however it ends."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None

    def new_mark(self) -> str:
        """Returns a mark for a process and its descendants, which are guarded from now on."""
        if self._process is None or self._process.poll() is not None:
            # The pipe is closed in every program that this process starts, so it ends with this process.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, self._mark],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        return f"{self._mark}.{uuid.uuid4().hex}"


GUARD = Guard()


def descendants(mark: str) -> list[int]:
    """Returns the pids of the living processes with a mark, or with the mark, a dot and more."""
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # It has ended, or belongs to another user.
                variables = (folder / "environ").read_bytes().split(b"\0")
                if any(each == wanted or each.startswith(wanted + b".") for each in variables):
                    found.append(int(folder.name))
    return found


def end_descendants(mark: str) -> None:
    """Kills all descendants, including processes that they start meanwhile. Waits at most a second for their ends."""
    for _ in range(_ROUNDS):
        pids = descendants(mark)
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_descendants(sys.argv[1])
