"""The experiment trackers that a run's configuration names, combined."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.coordinator.reporting.trackers.tensorboard import TensorBoardTracker
from services.coordinator.reporting.trackers.tracker_thread import TrackerThread
from services.coordinator.reporting.trackers.trackio import TrackioTracker
from services.coordinator.reporting.trackers.wandb import WandbTracker
from services.coordinator.store.run_record import RunRecord
from shoal.config import RunConfig

CLOSE_TIMEOUT_S = 60.0
"""Longest wait in seconds at the end of a run for the trackers to write the rest."""


class Trackers:
    """Passes all metrics to each tracker's thread. Nothing here waits, except `close`."""

    def __init__(self, threads: Sequence[TrackerThread] = ()) -> None:
        self._threads = threads

    @classmethod
    def for_run(cls, config: RunConfig, record: RunRecord, on_failure: Callable[[str, str], None]) -> "Trackers":
        """Starts the trackers of `[tracking]`; a failed tracker's thread calls `on_failure` with name and reason."""
        tracking, threads = config.tracking, []
        if tracking.tensorboard:
            folder = record.folder / "tensorboard"
            threads.append(TrackerThread("TensorBoard", lambda: TensorBoardTracker(folder), on_failure))
        if tracking.wandb != "disabled":
            threads.append(TrackerThread("Weights & Biases", lambda: WandbTracker(config, record), on_failure))
        if tracking.trackio:
            threads.append(TrackerThread("trackio", lambda: TrackioTracker(config, record), on_failure))
        return cls(threads)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of a train step, or of an evaluation of its policy."""
        for thread in self._threads:
            thread.log(step, metrics)

    def log_table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Logs rows of texts and numbers with the same columns; there is at least one."""
        for thread in self._threads:
            thread.log_table(step, name, rows)

    def restored(self, step: int) -> None:
        """Discards the log after a step, from which the run continues."""
        for thread in self._threads:
            thread.restored(step)

    def close(self, *, failed: bool) -> None:
        """Blocks until everything is written, for at most `CLOSE_TIMEOUT_S`. Do not call it on the event loop."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in self._threads:
            thread.close(failed=failed)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
