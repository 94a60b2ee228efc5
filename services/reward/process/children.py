"""The processes that a process has started and that have not ended, from /proc."""

import contextlib
from pathlib import Path


def children(pid: int) -> list[int]:
    """Returns the pids of the children of a process; none if it has ended. psutil would look at every process of the
    machine, which takes 17 ms with a thousand of them."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
