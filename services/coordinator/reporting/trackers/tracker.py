"""The protocol of experiment trackers."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tracker(Protocol):
    """A consumer of metrics by step. All calls come from its own thread; they may block and may raise anything."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of a train step, or those of an evaluation of its policy."""

    def log_table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes rows of texts and numbers with the same columns; there is at least one."""

    def restored(self, step: int) -> None:
        """Discards the log after a step, from which the run continues."""

    def close(self, *, failed: bool) -> None:
        """Writes the remaining data at the end of the run."""
