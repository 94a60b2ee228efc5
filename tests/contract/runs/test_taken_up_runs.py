"""A coordinator process that ends, in an orderly way or not, goes on with its run when it is started again."""

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.client import coordinator, follow
from services.coordinator.store.run_folders import RunFolders
from services.coordinator.store.run_record import RunRecord, RunState
from shoal.v1 import coordinator_pb2 as pb
from tests.support.cluster import kinds
from tests.support.coordinator_process import CoordinatorProcess, workers
from tests.support.scripted_workers import (
    Plane,
    ScriptedGenerator,
    ScriptedLearner,
    arithmetic_config,
)


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[CoordinatorProcess]:
    async with CoordinatorProcess.running(tmp_path / "runs") as process:
        yield process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_run_goes_on_when_its_coordinator_starts_again(
    process: CoordinatorProcess, model: Path, number: signal.Signals
) -> None:
    plane = Plane()
    learner, generator = ScriptedLearner(plane, step_s=0.1), ScriptedGenerator(plane)
    # Another coordinator's run, which this one leaves alone.
    (process.data_dir / "other").mkdir()
    RunRecord("other", process.data_dir / "other", state=RunState.RUNNING, coordinator="that").save()
    async with coordinator(process.address) as stub, workers(process, learner, generator):
        config = arithmetic_config(model, run={"num_steps": 9}, checkpoint={"every_steps": 3})
        request = pb.StartRunRequest(config=json_format.ParseDict(config, Struct()), run_id="lasting")
        await stub.StartRun(request, timeout=60)
        events = []
        code = None
        async for event in follow(stub, "lasting"):
            events.append(event)
            # Steps that ended with the process may be reported after its end.
            is_due = event.kind == "step" and event.attributes["step"] >= 4 and "checkpoint" in kinds(events)
            if code is None and is_due:
                code = await process.end(number)
                assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0)
                await process.start()
        run = (await stub.GetRun(pb.GetRunRequest(), timeout=60)).run
        groups = (await stub.ListRollouts(pb.ListRolloutsRequest(page_size=100), timeout=60)).groups
    assert (run.run_id, run.state, run.policy_version, run.attempt) == ("lasting", pb.RUN_STATE_FINISHED, 9, 1), run
    assert [event.sequence for event in events] == list(range(1, len(events) + 1)), "an event is missing or repeated"
    (restored,) = [event.attributes["policy_version"] for event in events if event.kind == "restored"]
    interrupted = [event.attributes["policy_version"] for event in events if event.kind == "interrupted"]
    assert (restored == 3 and not interrupted) if number == signal.SIGKILL else [restored] == interrupted, events
    trained = sorted(group.group_id for group in groups if group.state == "TRAINED")
    batches = [message.group.group_id for batch in learner.batches for message in batch if message.HasField("group")]
    assert sorted(batches) == trained and len(set(trained)) == len(trained), "a group was trained on twice, or lost"
    assert [group.order_number for group in groups] == list(range(len(groups))), "a prompt was skipped"
    assert [record.run_id for record in RunFolders(process.data_dir).left()[0]] == ["other"]


async def test_a_coordinator_that_is_killed_while_a_checkpoint_is_brought_to_disk_goes_on_from_the_one_before(
    process: CoordinatorProcess, model: Path
) -> None:
    class Slow(ScriptedLearner):
        async def SaveCheckpoint(self, request: Any, context: Any) -> Any:
            if request.checkpoint_id == "step-00000004":
                self.may_finish = may_finish
            return await super().SaveCheckpoint(request, context)

    may_finish = asyncio.Event()
    plane = Plane()
    learner, generator = Slow(plane), ScriptedGenerator(plane)
    async with coordinator(process.address) as stub, workers(process, learner, generator):
        config = arithmetic_config(model, run={"num_steps": 8}, checkpoint={"every_steps": 2})
        request = pb.StartRunRequest(config=json_format.ParseDict(config, Struct()), run_id="finishing")
        await stub.StartRun(request, timeout=60)
        events = []
        async for event in follow(stub, "finishing"):
            events.append(event)
            if event.kind == "step" and event.attributes["step"] == 5 and not may_finish.is_set():
                folder = process.data_dir / "finishing" / "checkpoints"
                committed = sorted(path.parent.name for path in folder.glob("*/manifest.json"))
                assert committed == ["step-00000002"], committed
                assert await process.end(signal.SIGKILL) == -signal.SIGKILL
                may_finish.set()
                await process.start()
        run = (await stub.GetRun(pb.GetRunRequest(), timeout=60)).run
        groups = (await stub.ListRollouts(pb.ListRolloutsRequest(page_size=100), timeout=60)).groups
    assert (run.state, run.policy_version, run.attempt) == (pb.RUN_STATE_FINISHED, 8, 1), run
    assert [event.attributes["policy_version"] for event in events if event.kind == "restored"] == [2], events
    saved = [event.attributes["policy_version"] for event in events if event.kind == "checkpoint"]
    assert saved == [2, 4, 6, 8], f"checkpoints of the steps {saved}"
    trained = sorted(group.group_id for group in groups if group.state == "TRAINED")
    batches = [message.group.group_id for batch in learner.batches for message in batch if message.HasField("group")]
    assert sorted(batches) == trained and len(set(trained)) == len(trained), "a group was trained on twice, or lost"
    assert [group.order_number for group in groups] == list(range(len(groups))), "a prompt was skipped"


async def test_a_change_that_waited_when_the_coordinator_was_killed_applies_where_the_run_is_restored(
    process: CoordinatorProcess, model: Path
) -> None:
    plane = Plane()
    learner, generator = ScriptedLearner(plane), ScriptedGenerator(plane)
    async with coordinator(process.address) as stub, workers(process, learner, generator):
        config = arithmetic_config(model, run={"num_steps": 5}, checkpoint={"every_steps": 2})
        request = pb.StartRunRequest(config=json_format.ParseDict(config, Struct()), run_id="changed")
        await stub.StartRun(request, timeout=60)
        events = []
        async for event in follow(stub, "changed"):
            events.append(event)
            if event.kind == "step" and event.attributes["step"] == 2 and "restored" not in kinds(events):
                await stub.PauseRun(pb.PauseRunRequest(), timeout=60)
                for rate in (2e-6, 3e-6):
                    changes = json_format.ParseDict({"learner": {"learning_rate": rate}}, Struct())
                    await stub.UpdateRunConfig(pb.UpdateRunConfigRequest(config=changes), timeout=60)
                await process.end(signal.SIGKILL)
                await process.start()
            if event.kind == "config_applied":
                await stub.ResumeRun(pb.ResumeRunRequest(), timeout=60)
        run = (await stub.GetRun(pb.GetRunRequest(), timeout=60)).run
    assert (run.state, run.policy_version) == (pb.RUN_STATE_FINISHED, 5), run
    (restored,) = [event.attributes["policy_version"] for event in events if event.kind == "restored"]
    (applied,) = [event for event in events if event.kind == "config_applied"]
    assert applied.message == f"from step {restored + 1:.0f} on: learner.learning_rate: 1e-06 -> 3e-06"
    assert applied.attributes["policy_version"] == restored
    with closing(sqlite3.connect(Path(run.path) / "ledger.sqlite")) as ledger:
        rows = ledger.execute("SELECT policy_version, fields FROM config_changes").fetchall()
    assert rows == [(restored, '{"learner.learning_rate": "1e-06 -> 3e-06"}')], rows
