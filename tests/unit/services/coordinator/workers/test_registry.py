import asyncio

import pytest

from services.coordinator.workers.registry import LEASE_S, MAX_MESSAGE_CHARS, MAX_WORKERS, WorkerRegistry
from shoal.errors import InvalidArgument, NotFound, ResourceExhausted
from shoal.v1 import worker_pb2
from tests.support.clock import Clock

GENERATOR = worker_pb2.WORKER_KIND_GENERATOR


async def test_a_worker_is_lost_when_its_lease_runs_out_and_not_before() -> None:
    clock = Clock(0.0)
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


@pytest.mark.parametrize(("lags", "is_alive"), [([60.0, 0.0], True), ([0.0] * 20, False)])
async def test_time_in_which_the_coordinator_stood_still_ends_no_lease(
    lags: list[float], is_alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, left = Clock(0.0), iter(lags)

    async def sleep(seconds: float) -> None:
        lag = next(left, None)
        if lag is None:
            raise asyncio.CancelledError
        clock.now += seconds + lag

    monkeypatch.setattr(asyncio, "sleep", sleep)
    registry = WorkerRegistry(clock)
    registry.register("g", GENERATOR, "h:1", 1)
    with pytest.raises(asyncio.CancelledError):
        await registry.expire_forever()
    assert bool(registry.alive(GENERATOR)) is is_alive, f"no heartbeat for {clock.now} s, of which {sum(lags)} s of lag"


def test_a_full_registry_forgets_workers_that_are_lost_and_refuses_more_that_live() -> None:
    registry = WorkerRegistry()
    for number in range(MAX_WORKERS):
        registry.register(f"g{number}", GENERATOR, f"h{number}:1", 1)
    with pytest.raises(ResourceExhausted, match=f"has {MAX_WORKERS} workers") as caught:
        registry.register("one more", GENERATOR, "other:1", 1)
    assert caught.value.reason == "TOO_MANY_WORKERS" and caught.value.retry_after_s == LEASE_S
    registry.register("g7", GENERATOR, "h7:1", 1)  # One that is known is renewed.
    registry.report_lost("g3", "it ended")
    registry.register("one more", GENERATOR, "other:1", 1)
    assert len(registry.all()) == MAX_WORKERS and "g3" not in {record.worker_id for record in registry.all()}


def test_what_a_worker_says_of_itself_is_bounded() -> None:
    registry = WorkerRegistry()
    for worker_id, address in (("g" * 10_000, "h:1"), ("g", "h" * 10_000 + ":1")):
        with pytest.raises(InvalidArgument):
            registry.register(worker_id, GENERATOR, address, 1)
    record = registry.register("g", GENERATOR, "h:1", 1)
    registry.heartbeat("g", worker_pb2.WorkerStatus(message="x" * 100_000))
    assert len(record.status.message) == MAX_MESSAGE_CHARS


def test_a_worker_that_was_lost_is_listed_for_five_minutes() -> None:
    clock = Clock(0.0)
    registry = WorkerRegistry(clock)
    for name in ("ended", "silent", "alive"):
        registry.register(name, GENERATOR, f"{name}:1", 1)
    registry.report_lost("ended", "it ended")
    for clock.now in range(0, 301, 10):
        registry.heartbeat("alive", worker_pb2.WorkerStatus())
        registry.expire()
    assert [(record.worker_id, record.lost) for record in registry.all()] == [
        ("alive", False), ("ended", True), ("silent", True),
    ]  # fmt: skip
    clock.now = 300.5
    registry.expire()
    assert [record.worker_id for record in registry.all()] == ["alive"]
