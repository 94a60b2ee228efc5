"""Configure of a generator: start of an engine, takeover by another run, restart."""

import asyncio

import pytest

from shoal.errors import (
    FailedPrecondition,
    InvalidArgument,
    Unavailable,
)
from shoal.v1 import generator_pb2 as pb
from shoal.v1 import worker_pb2
from tests.support.generator_client import TIMEOUT_S, Generator, config


async def test_a_generator_is_loading_while_its_engine_starts_and_stale_until_it_has_weights(idle: Generator) -> None:
    started = asyncio.Event()
    idle.starting.append(asyncio.ensure_future(started.wait()))  # type: ignore[arg-type]
    assert (await idle.status()).status.state == worker_pb2.WORKER_STATE_IDLE
    assert (await idle.configure()).state == worker_pb2.WORKER_STATE_LOADING
    with pytest.raises(FailedPrecondition, match="LOADING"):
        await idle.sample()
    assert (await idle.status()).status.state == worker_pb2.WORKER_STATE_LOADING
    started.set()
    await idle.reach(worker_pb2.WORKER_STATE_STALE)
    with pytest.raises(FailedPrecondition, match="no weights were published"):
        await idle.sample()


async def test_the_same_configuration_again_changes_nothing(ready: Generator) -> None:
    assert (await ready.configure()).state == worker_pb2.WORKER_STATE_READY
    assert len(ready.engines) == 1


async def test_a_configuration_that_does_not_validate_names_its_fields(idle: Generator) -> None:
    broken = config()
    broken["generator"]["max_num_seqs"] = 0  # type: ignore[index]
    with pytest.raises(InvalidArgument) as error:
        await idle.stub.Configure(pb.GeneratorServiceConfigureRequest(run_id="run", config=broken), timeout=TIMEOUT_S)
    assert error.value.violations[0].field == "generator.max_num_seqs"


async def test_the_process_restarts_for_another_engine_and_refuses_every_configuration_until_then(
    ready: Generator,
) -> None:
    for run_id, changes in (("other", {"max_num_seqs": 3}), ("other", {"max_num_seqs": 3}), ("run", {})):
        with pytest.raises(Unavailable, match="serves run run, whose") as caught:
            await ready.configure(run_id, **changes)
        assert caught.value.reason == "STARTING_OVER"
        assert caught.value.retry_after_s is not None and 5 <= caught.value.retry_after_s <= 60
    assert ready.ends.is_set()


async def test_another_run_takes_the_engine_over_without_its_weights(ready: Generator) -> None:
    await ready.configure("other")
    status = await ready.reach(worker_pb2.WORKER_STATE_STALE)
    assert status.run_id == "other"
    assert not (await ready.status()).HasField("version")
    assert len(ready.engines) == 1


async def test_after_an_engine_failed_to_start_the_generator_is_failed_with_the_reason_and_may_be_configured_again(
    idle: Generator,
) -> None:
    idle.starting.append(InvalidArgument("model.path: no folder"))
    await idle.configure()
    status = await idle.reach(worker_pb2.WORKER_STATE_FAILED)
    assert status.message == "model.path: no folder"
    await idle.configure()
    await idle.reach(worker_pb2.WORKER_STATE_STALE)
