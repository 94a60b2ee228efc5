"""The running child processes of a process, from /proc."""

import contextlib
from pathlib import Path


def children(pid: int) -> list[int]:
    """Returns the pids of the children of a process; empty if it has ended. psutil would examine every process of the
    machine, which takes 17 ms for a thousand processes."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
