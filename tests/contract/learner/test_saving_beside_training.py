"""Checkpoints that are brought to disk while the run trains on, and what comes in between: scripted workers."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.run.checkpoints import Checkpoints
from shoal.error_reasons import ErrorReason
from shoal.errors import ResourceExhausted
from shoal.v1 import coordinator_pb2 as pb
from tests.contract.learner.test_leaving import restart_reason, tell_to_end
from tests.contract.learner.test_restarts import at_step, begin, replace_learner
from tests.support.cluster import Cluster, kinds, of_kind
from tests.support.scripted_workers import ScriptedLearner

pytestmark = pytest.mark.usefixtures("short_leases")

SETTINGS: dict[str, Any] = {"run": {"num_steps": 8}, "checkpoint": {"every_steps": 4}}


async def begin_held(cluster: Cluster, model: Path, **sections: Any) -> None:
    """Starts a run whose checkpoint of step 4 is not brought to disk, and waits until step 6."""
    cluster.learner.may_finish.clear()
    await begin(cluster, model, **SETTINGS | sections)
    await cluster.until(at_step(6))
    assert not Checkpoints(cluster.data_dir / "lasting").committed(), "it is committed without the learner's files"


def saved_steps(events: list[pb.RunEvent]) -> list[int]:
    return [int(event.attributes["policy_version"]) for event in events if event.kind == "checkpoint"]


async def test_the_run_trains_on_while_a_checkpoint_is_brought_to_disk_and_its_event_comes_with_the_commit(
    cluster: Cluster, model: Path
) -> None:
    await begin_held(cluster, model)
    cluster.learner.may_finish.set()
    _, events = await cluster.finish(8, attempt=0)
    assert saved_steps(events) == [4, 8], kinds(events)
    saved = next(event for event in events if event.kind == "checkpoint")
    steps_before = [event.attributes["step"] for event in events[: events.index(saved)] if event.kind == "step"]
    assert max(steps_before) >= 6, f"it is reported after step {max(steps_before)}"
    assert 0 < saved.attributes["pause_s"] < saved.attributes["duration_s"], saved
    manifest = json.loads((cluster.data_dir / "lasting/checkpoints/step-00000004/manifest.json").read_text())
    assert manifest["policy_version"] == 4 and manifest["learner_files"][0]["path"] == "v4", manifest


async def test_a_learner_that_dies_with_half_a_checkpoint_costs_the_steps_since_the_one_before(
    cluster: Cluster, model: Path
) -> None:
    await begin_held(cluster, model)
    await replace_learner(cluster)
    _, events = await cluster.finish(8, attempt=1)
    (restored,) = [event.attributes["policy_version"] for event in events if event.kind == "restored"]
    assert restored == 0 and saved_steps(events) == [4, 8], kinds(events)
    await cluster.check_every_group_was_used_once(8)


async def test_a_learner_that_brings_no_checkpoint_to_disk_by_the_deadline_is_lost(
    cluster: Cluster, model: Path
) -> None:
    checkpoint = SETTINGS["checkpoint"] | {"timeout_s": 3.0}
    await begin_held(cluster, model, checkpoint=checkpoint, run={"num_steps": 400})
    restarting = (await cluster.until("restarting"))[-1]
    assert "SaveCheckpoint" in restarting.message and "3 s" in restarting.message, restarting
    await cluster.kill("learner-0")
    await cluster.stop(pb.STOP_MODE_NOW)
    assert (await cluster.end())[0].state == pb.RUN_STATE_STOPPED


async def test_a_disk_that_gets_full_meanwhile_is_an_event_and_the_next_step_tries_again(
    cluster: Cluster, model: Path
) -> None:
    class Full(ScriptedLearner):
        async def SaveCheckpoint(self, request: Any, context: Any) -> Any:
            response = await super().SaveCheckpoint(request, context)
            if request.checkpoint_id == "step-00000004" and not request.return_when_written:
                raise ResourceExhausted("the disk of /data is full", reason=ErrorReason.DISK_FULL)
            return response

    cluster.learner = Full(cluster.plane)
    await begin_held(cluster, model, run={"num_steps": 16})
    cluster.learner.may_finish.set()
    _, events = await cluster.finish(16)
    (failed,) = of_kind(events, "checkpoint_failed")
    assert failed.attributes["policy_version"] == 4 and "/data is full" in failed.message, failed
    retried = saved_steps(events)[0]
    assert retried >= 7 and saved_steps(events)[-1] == 16, saved_steps(events)
    assert not (cluster.data_dir / "lasting/checkpoints/step-00000004").exists()


@pytest.mark.parametrize("request_kind", ["stop", "drain", "checkpoint", "update"])
async def test_whatever_needs_a_checkpoint_waits_for_the_one_that_is_brought_to_disk(
    cluster: Cluster, model: Path, request_kind: str
) -> None:
    await begin_held(cluster, model, run={"num_steps": 400})
    rate = json_format.ParseDict({"learner": {"learning_rate": 3e-4}}, Struct())
    calls = {
        "stop": lambda: cluster.stop(pb.STOP_MODE_NOW),
        "drain": lambda: cluster.stop(pb.STOP_MODE_DRAIN),
        "checkpoint": lambda: cluster.save_checkpoint(),
        "update": lambda: cluster.stub.UpdateRunConfig(pb.UpdateRunConfigRequest(config=rate), timeout=60),
    }
    calling = asyncio.ensure_future(calls[request_kind]())
    cluster.learner.may_finish.set()
    await calling
    if request_kind in ("checkpoint", "update"):
        await cluster.until(lambda event: event.kind == "checkpoint" and event.attributes["policy_version"] > 4)
        await cluster.stop(pb.STOP_MODE_NOW)
    run, events = await cluster.end()
    assert run.state == pb.RUN_STATE_STOPPED, run.message
    steps = saved_steps(events)
    assert steps == sorted(set(steps)) and steps[0] == 4 and steps[-1] == run.policy_version > 4, steps


async def test_a_learner_that_is_told_to_end_meanwhile_parts_with_all_its_steps(cluster: Cluster, model: Path) -> None:
    await begin_held(cluster, model, run={"num_steps": 400})
    await tell_to_end(cluster)
    cluster.learner.may_finish.set()
    events = await cluster.until("restarting")
    assert "all of its steps" in restart_reason(events)
    last = max(int(event.attributes["step"]) for event in events if event.kind == "step")
    assert saved_steps(events) == [4, last], kinds(events)


async def test_what_a_coordinator_that_was_killed_left_of_a_checkpoint_is_deleted_with_the_next_commit(
    cluster: Cluster, model: Path
) -> None:
    half = cluster.data_dir / "lasting/checkpoints/step-00000003"
    half.mkdir(parents=True)
    (half / "ledger.sqlite").write_bytes(b"half of it")
    await begin(cluster, model, **SETTINGS)
    await cluster.finish()
    assert sorted(path.name for path in half.parent.iterdir()) == ["step-00000004", "step-00000008"]
