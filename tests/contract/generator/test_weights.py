"""The weight group and loads of a generator."""

import asyncio
from typing import Any

import pytest

from shoal.errors import (
    Aborted,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    ShoalError,
    Unavailable,
)
from shoal.v1 import generator_pb2 as pb
from shoal.v1 import weights_pb2, worker_pb2
from shoal.weights.manifest import Manifest, TensorSpec
from shoal.wire import float32_from_wire
from tests.support.generator_client import TIMEOUT_S, Generator


async def test_a_load_reports_ready_then_done_and_the_generator_serves(stale: Generator) -> None:
    await stale.join()
    receiving, done = await stale.load(7)
    assert receiving.stage == pb.LOAD_STAGE_READY
    assert done.stage == pb.LOAD_STAGE_DONE
    assert [(item.name, item.xxh3) for item in done.hashes] == [("w", "abc")]
    assert float32_from_wire(done.canary.logprobs, "canary").tolist() == [-7.0, -7.0]
    assert done.pause_s > 0 and (done.receive_s, done.load_s) == (0.1, 0.2)
    status = await stale.status()
    assert status.status.state == worker_pb2.WORKER_STATE_READY
    assert (status.version.policy_version, status.epoch, status.num_weight_ranks) == (7, 1, 1)
    assert stale.engine.pauses == [True]


async def test_a_stale_cache_is_kept_only_if_configured(idle: Generator) -> None:
    await idle.configure(keep_stale_kv=True)
    await idle.reach(worker_pb2.WORKER_STATE_STALE)
    await idle.join()
    await idle.load()
    assert idle.engine.pauses == [False]


@pytest.mark.parametrize("error", [Unavailable("a peer went"), DeadlineExceeded("late"), DataLoss("other bytes")])
async def test_a_load_that_fails_leaves_the_generator_stale_and_paused_until_one_succeeds(
    ready: Generator, error: ShoalError
) -> None:
    ready.engine.load_error = error
    with pytest.raises(type(error), match=error.message):
        await ready.load(1)
    status = await ready.status()
    assert status.status.state == worker_pb2.WORKER_STATE_STALE and not status.HasField("version")
    assert error.message in status.status.message
    assert not ready.engine.unpaused.is_set()
    for call in (ready.sample(), ready.stub.ResumeGeneration(pb.ResumeGenerationRequest(), timeout=TIMEOUT_S)):
        with pytest.raises(FailedPrecondition, match="STALE"):
            await call
    ready.engine.load_error = None
    await ready.join(epoch=2)
    await ready.load(1, epoch=2)
    assert sorted(await ready.sample()) == [0, 1]


async def test_weights_of_a_higher_attempt_abort_the_requests_in_flight(ready: Generator) -> None:
    await ready.load(5)
    waiting = await ready.held_sample()
    await ready.load(3, attempt=1)
    with pytest.raises(Aborted, match="restored"):
        await waiting


async def test_completions_in_flight_survive_a_load_of_the_same_attempt(ready: Generator) -> None:
    waiting = await ready.held_sample()
    await ready.load(1)
    ready.engine.sample_gate.set()
    assert sorted(await waiting) == [0, 1]


async def test_an_engine_that_loads_while_it_samples_is_not_paused(ready: Generator) -> None:
    ready.engine.loads_while_sampling = True
    ready.engine.pauses.clear()
    call = await ready.held_load()
    assert sorted(await ready.sample()) == [0, 1], "nothing is sampled during the load"
    ready.engine.load_gate.set()
    done = await call.read()
    assert ready.engine.pauses == [] and done.pause_s == done.load_s


async def test_a_pause_during_such_a_load_holds_after_it(ready: Generator) -> None:
    ready.engine.loads_while_sampling = True
    for error in (None, Unavailable("a peer went")):
        ready.engine.load_gate, ready.engine.load_error = asyncio.Event(), error
        call = ready.loading(1)
        await call.read()
        await ready.stub.PauseGeneration(pb.PauseGenerationRequest(), timeout=TIMEOUT_S)
        ready.engine.load_gate.set()
        if error is None:
            await call.read()
        else:
            with pytest.raises(Unavailable, match="a peer went"):
                await call.read()
        assert not ready.engine.unpaused.is_set(), f"it samples after a load with {error}"
        if error is None:
            await ready.stub.ResumeGeneration(pb.ResumeGenerationRequest(), timeout=TIMEOUT_S)


async def test_such_a_load_that_fails_leaves_the_completions_in_flight_alone(ready: Generator) -> None:
    ready.engine.loads_while_sampling = True
    waiting = await ready.held_sample()
    ready.engine.load_error = Unavailable("a peer went")
    with pytest.raises(Unavailable):
        await ready.load(1)
    assert (await ready.status()).status.state == worker_pb2.WORKER_STATE_STALE
    ready.engine.sample_gate.set()
    assert sorted(await waiting) == [0, 1]


async def test_a_load_in_another_epoch_is_refused(ready: Generator) -> None:
    with pytest.raises(FailedPrecondition, match="epoch 2"):
        await ready.load(1, epoch=2)


async def test_an_old_epoch_is_refused(ready: Generator) -> None:
    await ready.join(epoch=3)
    with pytest.raises(FailedPrecondition, match="epoch 2 is over"):
        await ready.join(epoch=2)


async def test_joining_again_returns_at_once(ready: Generator) -> None:
    ready.engine.join_gate = asyncio.Event()
    await ready.join()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rank_offset": 0}, "rank_offset"),
        ({"rank_offset": 2}, "rank_offset"),
        ({"manifest": Manifest((TensorSpec("v", "float32", (2,)),)).to_wire()}, "manifest.tensors"),
        ({"rendezvous": weights_pb2.WeightRendezvous(run_id="run")}, "rendezvous.store_host"),
    ],
)
async def test_a_bad_join_names_its_field(stale: Generator, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        await stale.join(**changes)
    assert error.value.violations[0].field == field


async def test_a_newer_epoch_ends_a_join_that_waits_for_members(stale: Generator) -> None:
    stale.engine.join_gate = asyncio.Event()
    first = asyncio.create_task(stale.join(epoch=1))
    await asyncio.wait_for(stale.engine.is_joining.wait(), TIMEOUT_S)
    second = asyncio.create_task(stale.join(epoch=2))
    with pytest.raises(Aborted, match="epoch 2 begins"):
        await first
    stale.engine.join_gate.set()
    await second
    assert (await stale.status()).epoch == 2


async def test_a_newer_epoch_ends_a_load_that_waits_for_its_sender(ready: Generator) -> None:
    call = await ready.held_load()
    status = await ready.status()
    assert status.status.state == worker_pb2.WORKER_STATE_READY
    with pytest.raises(FailedPrecondition, match="in progress"):
        await ready.load(1)
    joining = asyncio.create_task(ready.join(epoch=2))
    with pytest.raises(Unavailable, match="epoch 2 begins"):
        await call.read()
    await joining
    ready.engine.load_gate.set()
    await ready.load(1, epoch=2)


async def test_a_caller_that_disconnects_aborts_the_load(ready: Generator) -> None:
    call = await ready.held_load()
    call.cancel()
    await ready.reach(worker_pb2.WORKER_STATE_STALE)
    assert "disconnected" in ready.engine.group_aborts[-1]


async def test_leaving_the_group_is_repeatable(ready: Generator) -> None:
    for _ in range(2):
        await ready.stub.LeaveWeightGroup(pb.LeaveWeightGroupRequest(), timeout=TIMEOUT_S)
    assert not (await ready.status()).HasField("epoch")
    with pytest.raises(FailedPrecondition):
        await ready.load(1)
