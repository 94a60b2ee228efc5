"""What an experiment tracker is to a run, and the thread that keeps its troubles away from it."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 60.0
"""Longest wait for a tracker to write what it has left when the run ends."""


class Tracker(Protocol):
    """Takes metrics by step. Called from one thread that is its own; may block, may raise anything."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Takes the figures of a train step, or those of an evaluation of its policy."""

    def restored(self, step: int) -> None:
        """The run goes on behind a step: what was logged of later ones is given up."""

    def close(self, *, failed: bool) -> None:
        """The run has ended; writes what is left."""


class TrackerThread:
    """Runs one tracker on a thread of its own, in order. Its first error is its last: the run goes on without it."""

    def __init__(self, name: str, start: Callable[[], Tracker], on_failure: Callable[[str, str], None]) -> None:
        """`start` makes the tracker, on the thread. `on_failure` gets name and reason, on the thread, at most once."""
        self.name = name
        self._start = start
        self._on_failure = on_failure
        self._calls: queue.SimpleQueue[Callable[[Tracker], None] | None] = queue.SimpleQueue()
        # Not waited for by the interpreter's end: one that hangs must not keep the coordinator.
        self._thread = threading.Thread(target=self._run, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Returns at once."""
        copy = dict(figures)
        self._calls.put(lambda tracker: tracker.log(step, copy))

    def restored(self, step: int) -> None:
        """Returns at once."""
        self._calls.put(lambda tracker: tracker.restored(step))

    def close(self, *, failed: bool) -> None:
        """Waits for what is left to be written, for at most `CLOSE_TIMEOUT_S`."""
        self._calls.put(lambda tracker: tracker.close(failed=failed))
        self._calls.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            _log.error("%s has not written everything after %g s: the run ends without it", self.name, CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            tracker = self._start()
            while (call := self._calls.get()) is not None:
                call(tracker)
        except Exception as error:
            _log.exception("%s failed: the run goes on without it", self.name)
            self._on_failure(self.name, f"{type(error).__name__}: {error}")
            while self._calls.get() is not None:  # Whoever closes waits for this thread's end.
                pass
