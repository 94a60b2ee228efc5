"""The thread that runs one experiment tracker and keeps its failures away from the run."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.coordinator.reporting.trackers.tracker import Tracker

_log = logging.getLogger(__name__)


MAX_WAITING = 10_000
"""Most calls that wait for a slow tracker: the memory of a run must not grow because a server hangs."""


class TrackerThread:
    """Runs one tracker on its own thread, in order. The run continues without a tracker that fails or lags."""

    def __init__(self, name: str, start: Callable[[], Tracker], on_failure: Callable[[str, str], None]) -> None:
        """Starts the thread.

        `start` makes the tracker, on the thread. `on_failure` is called with name and reason, on any thread, at most
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

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queues `Tracker.log`."""
        copy = dict(metrics)
        self._put(lambda tracker: tracker.log(step, copy))

    def log_table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Queues `Tracker.log_table`."""
        self._put(lambda tracker: tracker.log_table(step, name, rows))

    def restored(self, step: int) -> None:
        """Queues `Tracker.restored`."""
        self._put(lambda tracker: tracker.restored(step))

    def close(self, *, failed: bool) -> None:
        """Queues `Tracker.close`, the last call."""
        self._put(lambda tracker: tracker.close(failed=failed))
        self._put(None)

    def join(self, timeout_s: float) -> None:
        """Blocks until a closed tracker has written the rest, for at most `timeout_s`."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.error("%s has not written everything in time: the run ends without it", self.name)

    def _put(self, call: Callable[[Tracker], None] | None) -> None:
        if self._is_left_out:
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._is_left_out = True
            self._on_failure(self.name, f"it is {MAX_WAITING} calls behind")

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
