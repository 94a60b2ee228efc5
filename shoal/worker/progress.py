"""Progress of long work in a worker, which its status shows."""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str], None]
"""Takes a description of what the work does now. Called from the thread that works."""


def silent(description: str) -> None:
    """Shows nothing: for ranks whose status nobody sees."""
