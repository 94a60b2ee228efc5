"""The end of a worker's process is noticed at once: real coordinator, scripted workers, leases that last for hours."""

from pathlib import Path

import pytest

from services.coordinator.workers import registry
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import worker_pb2
from tests.support.cluster import Cluster, kinds
from tests.support.scripted_workers import ScriptedGenerator, ScriptedLearner, ScriptedReward, arithmetic_config

GENERATOR, LEARNER = worker_pb2.WORKER_KIND_GENERATOR, worker_pb2.WORKER_KIND_LEARNER
REWARD = worker_pb2.WORKER_KIND_REWARD


@pytest.fixture(autouse=True)
def endless_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "LEASE_S", 3600.0)


async def begin(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.02))
    await cluster.start(arithmetic_config(model, run={"num_steps": 8}, checkpoint={"every_steps": 2}))
    await cluster.until(lambda event: event.kind == "step" and event.attributes["step"] >= 2)


@pytest.mark.parametrize("kind", [LEARNER, GENERATOR, REWARD])
async def test_a_run_goes_on_without_waiting_for_the_lease_of_a_process_that_ended(
    cluster: Cluster, model: Path, kind: worker_pb2.WorkerKind.ValueType
) -> None:
    await begin(cluster, model)
    name = worker_pb2.WorkerKind.Name(kind).removeprefix("WORKER_KIND_").lower()
    await cluster.kill(f"{name}-0")
    lost = (await cluster.until("worker_lost"))[-1]
    assert "its process has ended" in lost.attributes["reason"], lost
    cluster.learner, batches = ScriptedLearner(cluster.plane), cluster.learner.batches
    cluster.learner.batches = batches
    successors = {LEARNER: cluster.learner, GENERATOR: ScriptedGenerator(cluster.plane), REWARD: ScriptedReward()}
    await cluster.add(successors[kind], f"{name}-1")
    _, events = await cluster.finish(attempt=int(kind == LEARNER))
    assert kinds(events).count("worker_lost") == 1, kinds(events)


async def test_the_last_heartbeat_of_a_learner_that_failed_ends_its_lease_with_its_reason(
    cluster: Cluster, model: Path
) -> None:
    await begin(cluster, model)
    status = worker_pb2.WorkerStatus(state=worker_pb2.WORKER_STATE_FAILED, message="rank 1 ended with exit code -9")
    await cluster.stub.Heartbeat(pb.HeartbeatRequest(worker_id="learner-0", status=status), timeout=60)
    restarting = (await cluster.until("restarting"))[-1]
    assert restarting.attributes["reason"].endswith(": rank 1 ended with exit code -9"), restarting
