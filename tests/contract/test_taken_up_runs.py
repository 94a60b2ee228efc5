"""A coordinator process that ends, in an orderly way or not, goes on with its run when it is started again."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.client import coordinator, follow, patiently
from services.coordinator.store.run_folders import RunFolders
from services.coordinator.store.run_record import RunRecord, RunState
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import worker_pb2
from tests.support.cluster import kinds
from tests.support.local_stack import free_port
from tests.support.scripted_workers import (
    Plane,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedReward,
    arithmetic_config,
    serve_worker,
)
from tests.support.waiting import PATIENCE_S


class CoordinatorProcess:
    """A coordinator that can be started again at its address."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.address = f"127.0.0.1:{free_port()}"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = (sys.executable, "-m", "services.coordinator", "--listen", self.address, "--name", "this")
        self.process = await asyncio.create_subprocess_exec(*command, "--data-dir", str(self.data_dir))

    async def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), PATIENCE_S)


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[CoordinatorProcess]:
    (tmp_path / "runs").mkdir()
    process = CoordinatorProcess(tmp_path / "runs")
    await process.start()
    yield process
    await process.end(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_run_goes_on_when_its_coordinator_starts_again(
    process: CoordinatorProcess, model: Path, number: signal.Signals
) -> None:
    plane = Plane()
    learner, generator = ScriptedLearner(plane, step_s=0.1), ScriptedGenerator(plane)
    # Another coordinator's run, which this one leaves alone.
    (process.data_dir / "other").mkdir()
    RunRecord("other", process.data_dir / "other", state=RunState.RUNNING, coordinator="that").save()
    async with coordinator(process.address) as stub:
        await patiently(lambda: stub.ListRuns(pb.ListRunsRequest(), timeout=10))
        workers = [
            await serve_worker(process.address, kind, servicer, name, comes_back=True)
            for kind, servicer, name in (
                (worker_pb2.WORKER_KIND_LEARNER, learner, "learner-0"),
                (worker_pb2.WORKER_KIND_GENERATOR, generator, "generator-0"),
                (worker_pb2.WORKER_KIND_REWARD, ScriptedReward(), "reward-0"),
            )
        ]
        config = arithmetic_config(model, run={"num_steps": 9}, checkpoint={"every_steps": 3})
        request = pb.StartRunRequest(config=json_format.ParseDict(config, Struct()), run_id="lasting")
        await stub.StartRun(request, timeout=60)
        events = []
        async for event in follow(stub, "lasting"):
            events.append(event)
            if event.kind == "step" and event.attributes["step"] == 4 and "restored" not in kinds(events):
                code = await process.end(number)
                assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0)
                await process.start()
        run = (await stub.GetRun(pb.GetRunRequest(), timeout=60)).run
        groups = (await stub.ListRollouts(pb.ListRolloutsRequest(page_size=100), timeout=60)).groups
    for server, beating in workers:
        beating.cancel()
        await server.stop(0)
    assert (run.run_id, run.state, run.policy_version, run.attempt) == ("lasting", pb.RUN_STATE_FINISHED, 9, 1), run
    assert [event.sequence for event in events] == list(range(1, len(events) + 1)), "an event is missing or repeated"
    (restored,) = [event.attributes["policy_version"] for event in events if event.kind == "restored"]
    interrupted = [event.attributes["policy_version"] for event in events if event.kind == "interrupted"]
    assert (restored == 3 and not interrupted) if number == signal.SIGKILL else [restored] == interrupted, events
    trained = sorted(group.group_id for group in groups if group.state == "TRAINED")
    batches = [message.group.group_id for batch in learner.batches for message in batch if message.HasField("group")]
    assert sorted(batches) == trained and len(set(trained)) == len(trained), "a group was trained on twice, or lost"
    assert [group.order_number for group in groups] == list(range(len(groups))), "a prompt was skipped"
    assert [record.run_id for record in RunFolders(process.data_dir).left()] == ["other"]
