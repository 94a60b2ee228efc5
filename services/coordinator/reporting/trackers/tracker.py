"""The protocol of experiment trackers."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tracker(Protocol):
    """Takes metrics by step. All calls come from one thread of its own; they may block and may raise anything."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of a train step, or those of an evaluation of its policy."""

    def log_table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes rows of texts and numbers with the same columns; there is at least one."""

    def restored(self, step: int) -> None:
        """Discards what was logged after a step: the run continues from there."""

    def close(self, *, failed: bool) -> None:
        """Writes what is left at the end of the run."""
