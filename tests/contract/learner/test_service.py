"""Configuration and end of a learner over real gRPC: one rank, real DeepSpeed, a tiny model."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from services.learner.commands import LearnerCommands
from services.learner.ranks.process_group import ProcessGroup
from services.learner.service import LearnerService
from shoal.config.load import config_digest, config_struct, parse_config
from shoal.error_reasons import ErrorReason
from shoal.errors import (
    FailedPrecondition,
    InvalidArgument,
    Unavailable,
)
from shoal.rpc.channel import connect
from shoal.v1 import learner_pb2, worker_pb2
from shoal.v1.learner_pb2_grpc import LearnerServiceStub
from tests.support.learner_client import CANARY, RUN_ID, TIMEOUT_S, Client
from tests.support.loopback import LEARNER, serving
from tests.support.served_learner import client as client

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_after_a_missing_model_another_configuration_can_be_loaded(client: Client, tmp_path: Path) -> None:
    # A second learner in the process group of the first: `client` exists for that.
    service = LearnerService(
        lambda: LearnerCommands(ProcessGroup(rank=0, size=1, device=torch.device("cpu")), tmp_path), lambda: "127.0.0.1"
    )
    async with serving(service, LEARNER) as address, connect(address, LEARNER) as channel:
        other = Client(LearnerServiceStub(channel), tmp_path, client.config, service)
        await other.configure(model={"path": str(tmp_path / "nowhere")})
        assert await other.loaded() == worker_pb2.WORKER_STATE_FAILED
        message = (await other.status()).status.message
        assert message.startswith("model.path: "), message
        with pytest.raises(FailedPrecondition, match=r"FAILED.*model\.path") as refused:
            await other.logprobs(CANARY)
        assert refused.value.reason == "NOT_READY"
        await other.configure()
        assert await other.loaded() == worker_pb2.WORKER_STATE_READY


async def test_the_same_configuration_again_changes_nothing_and_another_is_refused(client: Client) -> None:
    status = await client.configure()
    assert status.state == worker_pb2.WORKER_STATE_READY
    assert status.config_digest == config_digest(parse_config(client.config))
    with pytest.raises(FailedPrecondition, match="another configuration") as caught:
        await client.configure(run={"seed": 1})
    assert caught.value.reason == "OTHER_CONFIGURATION"


async def test_new_hyperparameters_hold_from_the_next_step_on_and_the_model_stays(client: Client) -> None:
    def request(config: dict[str, Any]) -> learner_pb2.SetHyperparametersRequest:
        return learner_pb2.SetHyperparametersRequest(run_id=RUN_ID, config=config_struct(parse_config(config)))

    before = await client.train(await client.batch("before"))
    digest = (await client.status()).status.config_digest
    learner = client.config.get("learner", {}) | {"learning_rate": 0.0123}
    changed = client.config | {"learner": learner}
    try:
        assert (await client.stub.SetHyperparameters(request(changed), timeout=60)).version == before.version
        after = await client.train(await client.batch("after"))
        assert before.metrics["lr"] != 0.0123 == after.metrics["lr"], (before.metrics["lr"], after.metrics["lr"])
        again = await client.configure(learner=learner)
        assert again.state == worker_pb2.WORKER_STATE_READY and again.config_digest != digest, again
        with pytest.raises(InvalidArgument, match=r"sampling\.temperature"):
            await client.stub.SetHyperparameters(request(changed | {"sampling": {"temperature": 0.5}}), timeout=60)
    finally:
        await client.stub.SetHyperparameters(request(client.config), timeout=60)


# The last tests: the learner takes no configuration any more.


async def test_a_learner_that_is_told_to_end_waits_for_the_checkpoint_of_its_last_step(client: Client) -> None:
    assert (await client.train(await client.batch("last"))).applied
    draining = asyncio.create_task(client.service.departure.drain())
    await asyncio.sleep(0)  # It begins.
    assert (await client.status()).status.state == worker_pb2.WORKER_STATE_LEAVING
    with pytest.raises(Unavailable) as caught:
        await client.configure()
    assert caught.value.reason == ErrorReason.ENDING
    assert not draining.done(), "the step would be lost"
    await client.save("last")
    await asyncio.wait_for(draining, TIMEOUT_S)


async def test_a_learner_whose_last_step_no_checkpoint_has_in_time_says_so_and_ends(client: Client) -> None:
    assert (await client.train(await client.batch("lost"))).applied
    client.service.departure._grace_s = 0.0
    await asyncio.wait_for(client.service.departure.drain(), TIMEOUT_S)
    status = (await client.status()).status
    assert status.state == worker_pb2.WORKER_STATE_FAILED
    assert "--grace-s (0 s)" in status.message, status
