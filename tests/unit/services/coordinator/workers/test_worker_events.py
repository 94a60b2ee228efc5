"""What the events of workers say."""

import pytest

from services.coordinator.workers.worker_events import missing_message
from shoal.v1 import worker_pb2


@pytest.mark.parametrize("gap", ["", "generator 127.0.0.1:7 is starting the engine"])
def test_a_worker_that_still_loads_is_named_beside_the_limit(gap: str) -> None:
    message = missing_message([worker_pb2.WORKER_KIND_GENERATOR], 300.0, gap)
    assert gap in message and ": ." not in message, message
    assert message.startswith("no generator ") and "coordinator.worker_timeout_s (300 s)" in message, message
