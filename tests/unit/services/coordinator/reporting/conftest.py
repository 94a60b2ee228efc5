import time

import pytest

from tests.support.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that everything reads in place of `time.monotonic`."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock
