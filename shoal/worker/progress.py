"""Progress of long work in a worker, which its status shows."""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str], None]
"""Takes a description of the current work. The working thread calls it."""


def silent(description: str) -> None:
    """Shows nothing. For ranks whose status nobody sees."""
