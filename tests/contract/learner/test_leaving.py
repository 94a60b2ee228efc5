"""A learner that is told to end hands its last step over: real coordinator, scripted workers."""

from pathlib import Path
from typing import Any

import pytest

from shoal.errors import NotFound, ResourceExhausted
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import worker_pb2
from tests.contract.learner.test_restarts import add_learner, at_step, begin
from tests.support.cluster import Cluster, kinds, of_kind
from tests.support.scripted_workers import ScriptedLearner

NO_CHECKPOINTS = {"every_steps": 1000}


async def tell_to_end(cluster: Cluster) -> None:
    status = worker_pb2.WorkerStatus(state=worker_pb2.WORKER_STATE_LEAVING)
    await cluster.stub.Heartbeat(pb.HeartbeatRequest(worker_id="learner-0", status=status), timeout=60)


def restart_reason(events: list[pb.RunEvent]) -> str:
    (restarting,) = of_kind(events, "restarting")
    return restarting.message


async def test_no_step_is_repeated_after_the_return_of_a_learner_that_was_told_to_end(
    cluster: Cluster, model: Path
) -> None:
    await begin(cluster, model, run={"num_steps": 8}, checkpoint=NO_CHECKPOINTS)
    await cluster.until(at_step(3))
    await tell_to_end(cluster)
    seen = await cluster.until("restarting")
    last = max(event.attributes["step"] for event in seen if event.kind == "step")
    assert f"step-{int(last):08d}" in seen[-1].message, seen[-1]
    with pytest.raises(NotFound):  # So it knows that the run has parted with it.
        await tell_to_end(cluster)
    await add_learner(cluster, "learner-1")
    _, events = await cluster.finish(8, attempt=1)
    steps = [event.attributes["step"] for event in events if event.kind == "step"]
    assert steps == list(range(1, 9)), "each step was taken once"
    assert kinds(events).count("worker_leaving") == 1
    await cluster.check_every_group_was_used_once(8)


async def test_a_coordinator_without_a_run_lets_a_learner_go_at_once(cluster: Cluster) -> None:
    await cluster.add(cluster.learner, "learner-0")
    await tell_to_end(cluster)
    with pytest.raises(NotFound):
        await tell_to_end(cluster)


async def test_a_paused_run_saves_at_once_when_its_learner_is_told_to_end(cluster: Cluster, model: Path) -> None:
    await begin(cluster, model, run={"num_steps": 8}, checkpoint=NO_CHECKPOINTS)
    await cluster.until(at_step(2))
    await cluster.pause()
    await tell_to_end(cluster)
    events = await cluster.until("restarting")
    assert "all of its steps" in restart_reason(events)
    assert (await cluster.run()).state == pb.RUN_STATE_PAUSED


async def test_a_learner_goes_without_a_checkpoint_where_none_can_be_written(cluster: Cluster, model: Path) -> None:
    class Full(ScriptedLearner):
        async def SaveCheckpoint(self, request: Any, context: Any) -> Any:
            raise ResourceExhausted("the disk of /data is full")

    cluster.learner = Full(cluster.plane)
    await begin(cluster, model, run={"num_steps": 40}, checkpoint=NO_CHECKPOINTS)
    await cluster.until(at_step(2))
    await tell_to_end(cluster)
    events = await cluster.until("restarting")
    assert "the disk of /data is full" in restart_reason(events)
