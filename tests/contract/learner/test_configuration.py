"""A learner that has no model yet, over real gRPC: what it refuses, and when it restarts."""

import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.learner.service import LearnerService
from shoal.errors import FailedPrecondition, InvalidArgument, Unavailable
from shoal.rpc.channel import connect
from shoal.v1 import learner_pb2, worker_pb2
from shoal.v1.learner_pb2_grpc import LearnerServiceStub
from shoal.worker.reexec import Reexec
from tests.support.learner_client import CANARY, RUN_ID, Client
from tests.support.loopback import LEARNER, NoProgram, serving
from tests.support.train_batches import make_batch


@pytest.fixture
async def unconfigured(tmp_path: Path) -> AsyncIterator[Client]:
    async with restartable(tmp_path) as (learner, _):
        yield learner


async def test_before_configure_every_call_that_needs_the_model_is_refused(unconfigured: Client) -> None:
    calls = [
        unconfigured.train(make_batch()),
        unconfigured.logprobs(CANARY),
        unconfigured.create_group(1, 1),
        unconfigured.publish(1),
        unconfigured.save("c1"),
        unconfigured.load("c1", [], 1),
        unconfigured.stub.ExportModel(learner_pb2.ExportModelRequest(), timeout=60),
    ]
    for call in calls:
        with pytest.raises(FailedPrecondition, match="the learner is IDLE") as caught:
            await call
        assert caught.value.reason == "NOT_READY"


async def test_a_configuration_that_does_not_validate_names_the_field(unconfigured: Client) -> None:
    request = learner_pb2.LearnerServiceConfigureRequest(run_id=RUN_ID)
    request.config.update({"model": {"path": "m"}, "data": {"sources": [{"task": "t"}]}, "learner": {"zero_stage": 4}})
    with pytest.raises(InvalidArgument) as caught:
        await unconfigured.stub.Configure(request, timeout=60)
    assert [violation.field for violation in caught.value.violations] == ["learner.zero_stage"]


async def test_a_run_id_that_leads_out_of_the_data_folder_is_refused(unconfigured: Client) -> None:
    with pytest.raises(InvalidArgument, match="run_id"):
        await unconfigured.configure(run_id="../elsewhere")


async def test_it_restarts_for_another_configuration_of_its_run(tmp_path: Path) -> None:
    async with restartable(tmp_path) as (learner, ends):
        assert (await learner.configure()).state == worker_pb2.WORKER_STATE_LOADING
        with pytest.raises(Unavailable, match="the worker restarts") as caught:
            await learner.configure(run={"seed": 1})
        assert caught.value.reason == "STARTING_OVER"
    assert ends == ["SIGTERM"]


async def test_it_restarts_once_for_another_run_and_refuses_every_configuration_until_then(tmp_path: Path) -> None:
    async with restartable(tmp_path) as (learner, ends):
        for _ in range(2):
            assert (await learner.configure()).state == worker_pb2.WORKER_STATE_LOADING
        # Another run; the same, sent again; and the run that it serves, which somebody resumed in between.
        for run_id in ("run-2", "run-2", RUN_ID):
            with pytest.raises(Unavailable, match=f"{RUN_ID} .* run-2") as caught:
                await learner.configure(run_id)
            assert caught.value.reason == "STARTING_OVER" and caught.value.retry_after_s, caught.value
    assert ends == ["SIGTERM"]


@contextlib.asynccontextmanager
async def restartable(folder: Path) -> AsyncIterator[tuple[Client, list[str]]]:
    """A learner that never loads its model and can restart, and the signals that it sends itself."""
    ends: list[str] = []
    service = LearnerService(
        lambda: threading.Event().wait(),  # type: ignore[arg-type, return-value]
        lambda: "127.0.0.1",
        reexec=Reexec(NoProgram(), end=lambda: ends.append("SIGTERM")),
    )
    async with serving(service, LEARNER) as address, connect(address, LEARNER) as channel:
        config = {"model": {"path": "nowhere"}, "data": {"sources": [{"task": "arithmetic"}]}}
        yield Client(LearnerServiceStub(channel), folder, config, service), ends
