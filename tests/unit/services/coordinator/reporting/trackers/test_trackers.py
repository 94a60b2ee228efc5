"""The thread of one tracker."""

import threading
from collections.abc import Mapping

import pytest

from services.coordinator.reporting.trackers import trackers
from services.coordinator.reporting.trackers.trackers import TrackerThread


class Hanging:
    """A tracker whose server does not answer until it may."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.logged: list[int] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.may_answer.wait()
        self.logged.append(step)

    def log_table(self, *_: object) -> None: ...

    def restored(self, step: int) -> None: ...

    def close(self, *, failed: bool) -> None: ...


def test_a_tracker_that_hangs_is_left_out_and_keeps_no_more_than_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "MAX_WAITING", 100)
    tracker, failures = Hanging(), []
    thread = TrackerThread("slow", lambda: tracker, lambda name, reason: failures.append((name, reason)))
    for step in range(1000):
        thread.call(lambda tracker, step=step: tracker.log(step, {}))
    [(name, reason)] = failures
    assert name == "slow" and "100" in reason, reason
    tracker.may_answer.set()
    thread.end(failed=False)
    thread.join(60)
    assert len(tracker.logged) <= 101, f"{len(tracker.logged)} calls were kept"
