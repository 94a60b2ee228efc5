"""A coordinator process that ends, in an orderly way or not, goes on with its run when it is started again."""

import asyncio
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
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
from tests.support.cluster import kinds, of_kind
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


Act = Callable[[Any, pb.RunEvent, list[str]], Awaitable[None]]
"""Gets a stub, each event, and the kinds of the events so far."""


async def run_to_end(
    process: CoordinatorProcess, learner: ScriptedLearner, config: dict[str, Any], act: Act
) -> tuple[pb.Run, list[pb.RunEvent]]:
    """Runs a configuration to its end, and checks that no group was skipped or trained on twice."""
    events: list[pb.RunEvent] = []
    async with coordinator(process.address) as stub, workers(process, learner, ScriptedGenerator(learner.plane)):
        request = pb.StartRunRequest(config=json_format.ParseDict(config, Struct()), run_id="lasting")
        await stub.StartRun(request, timeout=60)
        async for event in follow(stub, "lasting"):
            events.append(event)
            await act(stub, event, kinds(events))
        run = (await stub.GetRun(pb.GetRunRequest(), timeout=60)).run
        groups = (await stub.ListRollouts(pb.ListRolloutsRequest(page_size=100), timeout=60)).groups
    assert (run.state, run.policy_version) == (pb.RUN_STATE_FINISHED, config["run"]["num_steps"]), run
    trained = sorted(group.group_id for group in groups if group.state == "TRAINED")
    batches = [message.group.group_id for batch in learner.batches for message in batch if message.HasField("group")]
    assert sorted(batches) == trained and len(set(trained)) == len(trained), "a group was trained on twice, or lost"
    assert [group.order_number for group in groups] == list(range(len(groups))), "a prompt was skipped"
    return run, events


def versions(events: list[pb.RunEvent], kind: str) -> list[float]:
    return [event.attributes["policy_version"] for event in of_kind(events, kind)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_run_goes_on_when_its_coordinator_starts_again(
    process: CoordinatorProcess, model: Path, number: signal.Signals
) -> None:
    # Another coordinator's run, which this one leaves alone.
    (process.data_dir / "other").mkdir()
    RunRecord("other", process.data_dir / "other", state=RunState.RUNNING, coordinator="that").save()
    codes = []

    async def act(stub: Any, event: pb.RunEvent, so_far: list[str]) -> None:
        # Steps that ended with the process may be reported after its end.
        is_due = event.kind == "step" and event.attributes["step"] >= 4 and "checkpoint" in so_far
        if is_due and not codes:
            codes.append(await process.end(number))
            await process.start()

    config = arithmetic_config(model, run={"num_steps": 9}, checkpoint={"every_steps": 3})
    run, events = await run_to_end(process, ScriptedLearner(Plane(), step_s=0.1), config, act)
    assert codes == [-signal.SIGKILL if number == signal.SIGKILL else 0] and run.attempt == 1, run
    assert [event.sequence for event in events] == list(range(1, len(events) + 1)), "an event is missing or repeated"
    restored, interrupted = versions(events, "restored"), versions(events, "interrupted")
    assert (restored == [3] and not interrupted) if number == signal.SIGKILL else restored == interrupted, events
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

    async def act(stub: Any, event: pb.RunEvent, so_far: list[str]) -> None:
        if event.kind == "step" and event.attributes["step"] == 5 and not may_finish.is_set():
            folder = process.data_dir / "lasting" / "checkpoints"
            committed = sorted(path.parent.name for path in folder.glob("*/manifest.json"))
            assert committed == ["step-00000002"], committed
            await process.end(signal.SIGKILL)
            may_finish.set()
            await process.start()

    config = arithmetic_config(model, run={"num_steps": 8}, checkpoint={"every_steps": 2})
    run, events = await run_to_end(process, Slow(Plane()), config, act)
    assert run.attempt == 1 and versions(events, "restored") == [2], events
    assert versions(events, "checkpoint") == [2, 4, 6, 8], events


async def test_a_change_that_waited_when_the_coordinator_was_killed_applies_where_the_run_is_restored(
    process: CoordinatorProcess, model: Path
) -> None:
    async def act(stub: Any, event: pb.RunEvent, so_far: list[str]) -> None:
        if event.kind == "step" and event.attributes["step"] == 2 and "restored" not in so_far:
            await stub.PauseRun(pb.PauseRunRequest(), timeout=60)
            for rate in (2e-6, 3e-6):
                changes = json_format.ParseDict({"learner": {"learning_rate": rate}}, Struct())
                await stub.UpdateRunConfig(pb.UpdateRunConfigRequest(config=changes), timeout=60)
            await process.end(signal.SIGKILL)
            await process.start()
        if event.kind == "config_applied":
            await stub.ResumeRun(pb.ResumeRunRequest(), timeout=60)

    config = arithmetic_config(model, run={"num_steps": 5}, checkpoint={"every_steps": 2})
    run, events = await run_to_end(process, ScriptedLearner(Plane()), config, act)
    (restored,), (applied,) = versions(events, "restored"), of_kind(events, "config_applied")
    assert list(applied.attributes["fields"]) == ["learner.learning_rate"], applied
    assert applied.attributes["policy_version"] == restored, applied
    with closing(sqlite3.connect(Path(run.path) / "ledger.sqlite")) as ledger:
        rows = ledger.execute("SELECT policy_version, fields FROM config_changes").fetchall()
    assert rows == [(restored, '{"learner.learning_rate": "1e-06 -> 3e-06"}')], rows
