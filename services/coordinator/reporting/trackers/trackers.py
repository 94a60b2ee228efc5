"""The experiment trackers that a run's configuration names.

Each runs on its own thread, so that its failures do not affect the run.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from services.coordinator.reporting.trackers.tensorboard import TensorBoardTracker
from services.coordinator.reporting.trackers.trackio import TrackioTracker
from services.coordinator.reporting.trackers.wandb import WandbTracker
from services.coordinator.store.run_record import RunRecord
from shoal.config import RunConfig

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 60.0
"""Maximum time in seconds for which the end of a run waits until the trackers have written the remaining data."""
MAX_WAITING = 10_000
"""Maximum number of calls that wait for a slow tracker, so that a hanging server does not fill a run's memory."""


class Tracker(Protocol):
    """A consumer of metrics by step.

    All calls come from the tracker's own thread; a call may block and may raise anything.
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of a train step, or of an evaluation of the step's policy."""

    def log_table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Takes rows of texts and numbers with the same columns; there is at least one row."""

    def restored(self, step: int) -> None:
        """Discards what was logged after a step, since the run continues from that step."""

    def close(self, *, failed: bool) -> None:
        """Writes the remaining data at the end of the run."""


class TrackerThread:
    """Runs the calls of one tracker on a separate thread, in order.

    The run continues without a tracker that fails or lags.
    """

    def __init__(self, name: str, start: Callable[[], Tracker], on_failure: Callable[[str, str], None]) -> None:
        """Starts the thread.

        `start` creates the tracker on the thread. `on_failure` is called with name and reason, on any thread, at most
        once.
        """
        self.name = name
        self._start = start
        self._on_failure = on_failure
        self._calls: queue.Queue[Callable[[Tracker], None] | None] = queue.Queue(MAX_WAITING)
        self._is_left_out = False
        # A daemon, so that the interpreter does not wait for a tracker that hangs.
        self._thread = threading.Thread(target=self._run, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def call(self, call: Callable[[Tracker], None]) -> None:
        """Queues a call of the tracker."""
        self._put(call)

    def end(self, *, failed: bool) -> None:
        """Queues `Tracker.close`, the last call."""
        self._put(lambda tracker: tracker.close(failed=failed))
        self._put(None)

    def join(self, timeout_s: float) -> None:
        """Blocks until the tracker has written the remaining data, for at most `timeout_s`. Call `end` before."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.error("%s did not write everything in time; the run ends without the rest", self.name)

    def _put(self, call: Callable[[Tracker], None] | None) -> None:
        if self._is_left_out:
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._is_left_out = True
            self._on_failure(self.name, f"the tracker is {MAX_WAITING} calls behind")

    def _run(self) -> None:
        try:
            tracker = self._start()
            while not self._is_left_out and (call := self._calls.get()) is not None:
                call(tracker)
        except Exception as error:
            _log.exception("%s failed: the run continues without it", self.name)
            if not self._is_left_out:
                self._is_left_out = True
                self._on_failure(self.name, f"{type(error).__name__}: {error}")


class Trackers:
    """Passes all metrics to each tracker's thread. Nothing here waits, except `close`."""

    def __init__(self, config: RunConfig, record: RunRecord, on_failure: Callable[[str, str], None]) -> None:
        """Starts the trackers of `[tracking]`; a failed tracker's thread calls `on_failure` with name and reason."""
        tracking, threads = config.tracking, list[TrackerThread]()
        if tracking.tensorboard:
            folder = record.folder / "tensorboard"
            threads.append(TrackerThread("TensorBoard", lambda: TensorBoardTracker(folder), on_failure))
        if tracking.wandb != "disabled":
            threads.append(TrackerThread("Weights & Biases", lambda: WandbTracker(config, record), on_failure))
        if tracking.trackio:
            threads.append(TrackerThread("trackio", lambda: TrackioTracker(config, record), on_failure))
        self._threads = threads

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of a train step, or of an evaluation of the step's policy."""
        copy = dict(metrics)
        self._call(lambda tracker: tracker.log(step, copy))

    def log_table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Logs rows of texts and numbers with the same columns; there is at least one row."""
        self._call(lambda tracker: tracker.log_table(step, name, rows))

    def restored(self, step: int) -> None:
        """Discards what was logged after a step, since the run continues from that step."""
        self._call(lambda tracker: tracker.restored(step))

    def _call(self, call: Callable[[Tracker], None]) -> None:
        for thread in self._threads:
            thread.call(call)

    def close(self, *, failed: bool) -> None:
        """Blocks until everything is written, for at most `CLOSE_TIMEOUT_S`. Do not call it on the event loop."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in self._threads:
            thread.end(failed=failed)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
