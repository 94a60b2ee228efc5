from types import SimpleNamespace
from typing import Any

import pytest

from services.coordinator.workers import member
from services.coordinator.workers.member import MAX_PAUSE_S, Member, Standing, loading_status, while_leased
from services.coordinator.workers.registry import WorkerRegistry
from shoal.error_reasons import ErrorReason
from shoal.errors import DeadlineExceeded, FailedPrecondition, Unavailable
from shoal.v1 import worker_pb2


def _member(registry: WorkerRegistry, get_status: Any) -> Member:
    record = registry.register("learner-0", worker_pb2.WORKER_KIND_LEARNER, "127.0.0.1:1", 0)
    channel: Any = None
    return Member(record, channel, SimpleNamespace(GetStatus=get_status))


async def test_a_worker_that_is_too_busy_to_answer_while_it_loads_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member, "POLL_S", 0.0)
    results = iter([DeadlineExceeded("busy"), Unavailable("busy"), "status"])

    async def get_status(request: object, timeout: float) -> object:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    assert await loading_status(_member(WorkerRegistry(), get_status)) == "status"


async def test_the_answer_of_a_worker_that_starts_over_is_no_silence() -> None:
    async def configure() -> object:
        raise Unavailable("it restarts", reason=ErrorReason.STARTING_OVER)

    with pytest.raises(Unavailable, match="it restarts"):
        await while_leased(_member(WorkerRegistry(), None), configure)


async def test_a_worker_that_does_not_answer_is_given_up_once_its_lease_has_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member, "POLL_S", 0.0)
    now = 0.0
    registry = WorkerRegistry(clock=lambda: now)

    async def get_status(request: object, timeout: float) -> object:
        nonlocal now
        now += 5.0
        registry.expire()
        raise DeadlineExceeded("busy")

    with pytest.raises(FailedPrecondition, match="no heartbeat for 20 s"):
        await loading_status(_member(registry, get_status))


def test_pauses_double_up_to_a_bound_and_a_load_ends_the_row() -> None:
    standing = Standing()
    pauses = [standing.load_failed(100.0, max_failures=99) for _ in range(8)]
    assert pauses == [5, 10, 20, 40, 80, 160, MAX_PAUSE_S, MAX_PAUSE_S], pauses
    assert not standing.may_try(100.0 + MAX_PAUSE_S - 1) and standing.may_try(100.0 + MAX_PAUSE_S)
    standing.loaded()
    assert standing.may_try(0.0) and standing.load_failed(0.0, max_failures=99) == 5


def test_the_last_failure_quarantines_for_good() -> None:
    standing = Standing()
    assert [standing.load_failed(0.0, max_failures=2) for _ in range(2)] == [5, float("inf")]
    assert standing.is_quarantined and not standing.may_try(1e12)
