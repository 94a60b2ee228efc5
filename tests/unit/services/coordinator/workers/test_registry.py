import pytest

from services.coordinator.workers.registry import LEASE_S, WorkerRegistry
from shoal.errors import NotFound
from shoal.v1 import worker_pb2

GENERATOR = worker_pb2.WORKER_KIND_GENERATOR


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_worker_is_lost_when_its_lease_runs_out_and_not_before() -> None:
    clock = Clock()
    registry = WorkerRegistry(clock)
    registry.register("g", GENERATOR, "h:1", 1)
    clock.now = LEASE_S
    registry.expire()
    assert len(registry.alive(GENERATOR)) == 1
    registry.heartbeat("g", worker_pb2.WorkerStatus(state=worker_pb2.WORKER_STATE_READY))
    clock.now = 2 * LEASE_S + 0.1
    registry.expire()
    assert not registry.alive(GENERATOR), f"alive {clock.now - LEASE_S} s after its last heartbeat"
    with pytest.raises(NotFound):
        registry.heartbeat("g", worker_pb2.WorkerStatus())
    registry.register("g", GENERATOR, "h:1", 1)
    assert len(registry.alive(GENERATOR)) == 1


async def test_a_process_that_takes_an_address_ends_the_lease_of_its_predecessor() -> None:
    registry = WorkerRegistry(Clock())
    registry.register("before", GENERATOR, "h:1", 1)
    registry.register("after", GENERATOR, "h:1", 1)
    assert [record.worker_id for record in registry.alive(GENERATOR)] == ["after"]
