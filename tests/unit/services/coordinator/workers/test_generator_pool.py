"""Which generator a group gets, when, and from when on its deadline counts."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from services.coordinator.workers.claims import Binding
from services.coordinator.workers.deterministic_batches import Batch, Seat
from services.coordinator.workers.generator_pool import GeneratorPool
from services.coordinator.workers.group_progress import GroupProgress
from services.coordinator.workers.lost_work import WorkFailed
from services.coordinator.workers.member import Member
from services.coordinator.workers.registry import WorkerRecord, WorkerRegistry
from shoal.concurrency import Signal
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, DeadlineExceeded, FailedPrecondition, Internal, ShoalError, Unavailable
from shoal.rollout import Prompt, SamplingParams, WeightVersion
from shoal.v1 import generator_pb2, worker_pb2
from tests.support.clock import Clock
from tests.support.waiting import eventually, settled

READY, BROKEN = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
TIMEOUT_S = 0.1
PROMPT = Prompt("p:0", np.array([1], np.int32), "", ())


class Fleet:
    def __init__(self, *generators: Member) -> None:
        self.generators = list(generators)
        self.gpu_turns = SimpleNamespace(began=0.0)
        self.out: list[str] = []
        self.changed = Signal()

    def out_of_reach(self, member: Member, error: ShoalError) -> None:
        member.serving = False
        self.out.append(member.record.worker_id)

    def leaves(self, member: Member) -> None:
        member.is_leaving = True


def generator(name: str, stub: Any = None, state: grpc.ChannelConnectivity = READY) -> Member:
    record = WorkerRecord(name, worker_pb2.WORKER_KIND_GENERATOR, f"{name}:1", 1, 0.0)
    channel: Any = SimpleNamespace(get_state=lambda: state)
    return Member(record, channel, stub, serving=True, version=WeightVersion(0, 1))


def pool_of(fleet: Fleet, *, clock: Any = None, max_num_seqs: int = 4, wait_timeout_s: float = 60.0) -> GeneratorPool:
    any_fleet: Any = fleet
    running_s = clock or (lambda: 0.0)
    return GeneratorPool(any_fleet, max_num_seqs=max_num_seqs, wait_timeout_s=wait_timeout_s, running_s=running_s)


class Group:
    """A group that waits for room, and then keeps it."""

    def __init__(self, pool: GeneratorPool, priority: int, **wanted: Any) -> None:
        self.binding: Binding | None = None
        self._may_leave = asyncio.Event()
        self.task = asyncio.create_task(self._stay(pool, priority, wanted))

    async def _stay(self, pool: GeneratorPool, priority: int, wanted: dict[str, Any]) -> None:
        async with pool.room(4, priority=priority, **wanted) as self.binding:
            await self._may_leave.wait()

    async def leave(self) -> None:
        self._may_leave.set()
        await self.task


async def test_groups_wait_for_room_in_their_order_and_a_generator_never_runs_dry() -> None:
    a, b = generator("a"), generator("b")
    pool = pool_of(Fleet(a, b))
    groups = [Group(pool, priority) for priority in (0, 1, 3, 2)]
    await settled()
    assert [group.binding is not None for group in groups] == [True, True, False, False]
    assert (a.outstanding, b.outstanding) == (4, 4), "each group goes to the least loaded generator"
    assert groups[0].binding is not None
    groups[0].binding.resize(3)  # One of its completions came back.
    await settled()
    assert groups[3].binding is not None and groups[2].binding is None, "the older group is first"
    assert sorted((a.outstanding, b.outstanding)) == [4, 7]
    for group in (groups[0], groups[1], groups[3]):
        await group.leave()
    await settled()
    assert groups[2].binding is not None
    await groups[2].leave()
    assert (a.outstanding, b.outstanding) == (0, 0)


def test_the_cache_in_use_is_the_mean_over_generators_and_their_heartbeats() -> None:
    registry = WorkerRegistry()
    channel: Any = None
    records = [registry.register(name, worker_pb2.WORKER_KIND_GENERATOR, f"{name}:1", 1) for name in "abc"]
    pool = pool_of(Fleet(*(Member(record, channel, None) for record in records)))
    assert (pool.num_seats, pool.take_kv_cache_use()) == (12, None)
    for name, share in (("a", 0.5), ("a", 1.0), ("b", 0.25), ("c", None)):
        registry.heartbeat(name, worker_pb2.WorkerStatus(load=worker_pb2.WorkerLoad(kv_cache_use=share)))
    assert pool.take_kv_cache_use() == 0.5, "0.75 and 0.25; an earlier version does not report it"
    assert pool.take_kv_cache_use() == 0.625, "the last value where no heartbeat came"


async def test_a_group_that_is_canceled_leaves_its_place_and_its_room() -> None:
    a = generator("a")
    pool = pool_of(Fleet(a))
    inside, waiting, behind = (Group(pool, priority) for priority in range(3))
    await settled()
    for group in (waiting, inside):
        group.task.cancel()
        await asyncio.gather(group.task, return_exceptions=True)
    await settled()
    assert behind.binding is not None and a.outstanding == 4
    await behind.leave()
    assert a.outstanding == 0


async def test_answers_come_before_groups_for_training_and_wait_for_their_version_alone() -> None:
    a = generator("a")
    pool = pool_of(Fleet(a))
    inside, training = Group(pool, 0), Group(pool, 1)
    other, answer = Group(pool, -1, version=WeightVersion(0, 2)), Group(pool, -1, version=WeightVersion(0, 1))
    await settled()
    await inside.leave()
    await settled()
    assert answer.binding is not None and training.binding is None
    await answer.leave()
    await settled()
    assert training.binding is not None and other.binding is None
    for group in (training, other):
        group.task.cancel()


async def test_a_wait_for_room_has_no_deadline_and_one_for_a_generator_has() -> None:
    a = generator("a")
    fleet = Fleet(a)
    pool = pool_of(fleet, wait_timeout_s=TIMEOUT_S)
    inside, waiting = Group(pool, 0), Group(pool, 1)
    await asyncio.sleep(3 * TIMEOUT_S)
    assert not waiting.task.done(), "the group gave up while a generator serves"
    a.serving = False
    fleet.changed.notify()
    with pytest.raises(FailedPrecondition, match="generator") as refused:
        await asyncio.wait_for(waiting.task, 60)
    assert refused.value.reason == ErrorReason.NO_GENERATOR
    await inside.leave()


class Stub:
    """Answers with one message for each item: an event to wait for, an error to raise, or a message."""

    def __init__(self, *script: Any) -> None:
        self.script = script

    async def GenerateGroup(self, request: Any, timeout: float) -> AsyncIterator[Any]:
        for item in self.script:
            if isinstance(item, asyncio.Event):
                await item.wait()
            elif isinstance(item, Exception):
                raise item
            else:
                yield item


BEGUN = generator_pb2.GenerateGroupResponse(has_begun=True)


def sampling(pool: GeneratorPool, member: Member, begun: list[float], clock: Clock) -> "asyncio.Task[list[Any]]":
    stream = pool.sample(
        Binding(member, 1, lambda: None),
        PROMPT,
        GroupProgress([7]),
        SamplingParams(1.0, 4, ()),
        request_id="r",
        timeout_s=TIMEOUT_S,
        on_begin=lambda: begun.append(clock.now),
    )

    async def read() -> list[Any]:
        return [completion async for completion in stream]

    return asyncio.create_task(read())


async def test_a_group_that_takes_too_long_from_its_first_token_on_runs_into_its_deadline() -> None:
    member, clock = generator("a", Stub(BEGUN, asyncio.Event())), Clock()
    reading = sampling(pool_of(Fleet(member), clock=clock), member, [], clock)
    await asyncio.sleep(2 * TIMEOUT_S)
    assert not reading.done(), "the clock of the run stands still"
    clock.now += 2 * TIMEOUT_S
    with pytest.raises(DeadlineExceeded, match="first token"):
        await asyncio.wait_for(reading, 60)
    assert member.serving, "the group is to blame, not the generator"


async def test_a_group_does_not_wait_for_a_generator_that_is_lost_and_hangs() -> None:
    member, clock = generator("a", Stub(BEGUN, asyncio.Event())), Clock()
    reading = sampling(pool_of(Fleet(member), clock=clock), member, begun := [], clock)
    await eventually(lambda: begun)
    member.record.loss_reason = "no heartbeat for 15 s"
    member.lost.set()
    with pytest.raises(WorkFailed, match="no heartbeat for 15 s") as raised:
        await asyncio.wait_for(reading, 60)
    assert raised.value.is_loss and member.outstanding == 0


@pytest.mark.parametrize(
    ("error", "is_loss", "is_out", "serves"),
    [
        (Internal("vLLM failed to sample", reason=ErrorReason.ENGINE_FAILED), True, False, True),
        (Unavailable("the connection was reset"), True, True, False),
        (Aborted("the engine has died", reason=ErrorReason.ENGINE_DEAD), True, True, False),
        (Aborted("the generator is shutting down", reason=ErrorReason.SHUTTING_DOWN), False, False, True),
        (FailedPrecondition("the generator is STALE", reason=ErrorReason.STALE), False, False, False),
    ],
    ids=lambda value: getattr(value, "reason", str(value)),
)
async def test_an_error_counts_for_the_group_and_against_the_generator_as_it_should(
    error: ShoalError, is_loss: bool, is_out: bool, serves: bool
) -> None:
    member, clock = generator("a", Stub(BEGUN, error)), Clock()
    fleet = Fleet(member)
    with pytest.raises(WorkFailed) as raised:
        await sampling(pool_of(fleet, clock=clock), member, [], clock)
    assert (raised.value.is_loss, bool(fleet.out), member.serving) == (is_loss, is_out, serves)
    assert member.is_leaving == (error.reason == ErrorReason.SHUTTING_DOWN)
    assert member.outstanding == 0


@pytest.mark.parametrize(
    ("error", "is_loss"),
    [
        (Unavailable("nothing listens at its address"), False),
        (Internal("vLLM failed to sample", reason=ErrorReason.ENGINE_FAILED), True),
    ],
)
async def test_a_generator_that_had_ended_before_the_request_did_not_end_for_the_group(
    error: ShoalError, is_loss: bool
) -> None:
    member, fleet = generator("a", Stub(error), BROKEN), Fleet()
    with pytest.raises(WorkFailed) as raised:
        await sampling(pool_of(fleet, clock=(clock := Clock())), member, [], clock)
    assert raised.value.is_loss is is_loss, error


async def test_a_batch_of_which_a_group_is_canceled_gives_back_its_room_and_its_claim() -> None:
    a = generator("a")
    pool = pool_of(Fleet(a), max_num_seqs=64)
    batch = Batch("batch", ["x", "y"])
    for is_bound in (True, False):
        a.serving = is_bound
        groups = [Group(pool, 1, seat=Seat(batch, member)) for member in ("x", "y")]
        await settled()
        assert (a.outstanding > 0) == is_bound
        groups[0].task.cancel()
        with pytest.raises(WorkFailed):
            await groups[1].task
        assert a.outstanding == 0
    a.serving = True
    after = Group(pool, 2)
    await settled()
    assert after.binding is not None, "the batch still waits in front"
    await after.leave()
