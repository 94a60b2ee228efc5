"""A second run on workers that served a first one and restart for it."""

import asyncio
from pathlib import Path
from typing import Any

from services.coordinator.workers import arrivals
from shoal.error_reasons import ErrorReason
from shoal.errors import Unavailable
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import worker_pb2
from tests.support.cluster import Cluster, kinds, of_kind
from tests.support.scripted_workers import ScriptedGenerator, ScriptedLearner, arithmetic_config

LEARNER, GENERATOR = worker_pb2.WORKER_KIND_LEARNER, worker_pb2.WORKER_KIND_GENERATOR


def restart_at_configure(servicer: Any) -> asyncio.Event:
    """Makes a scripted worker answer Configure with a restart. Returns an event that is set when it has done so."""
    left = asyncio.Event()

    async def configure(request: Any, context: Any) -> Any:
        left.set()
        raise Unavailable("it restarts", reason=ErrorReason.STARTING_OVER, retry_after_s=15)

    servicer.Configure = configure
    return left


async def test_a_run_waits_for_every_worker_that_restarts_for_it_and_loses_none(cluster: Cluster, model: Path) -> None:
    leaving = ScriptedGenerator(cluster.plane)
    learner_left, generator_left = restart_at_configure(cluster.learner), restart_at_configure(leaving)
    await cluster.add_all(leaving)
    await cluster.add(ScriptedGenerator(cluster.plane), "generator-1")
    await cluster.start(arithmetic_config(model, coordinator={"worker_timeout_s": 1.5}))
    async with asyncio.timeout(120):
        await asyncio.gather(learner_left.wait(), generator_left.wait())
    await cluster.kill("generator-0")
    await cluster.add(ScriptedLearner(cluster.plane), "learner-1")
    await cluster.until("worker_joined", worker_id="learner-1")
    # Longer than the run waits for workers that are missing.
    await asyncio.sleep(2)
    assert (await cluster.run()).state == pb.RUN_STATE_STARTING, "the run did not wait for its second generator"
    await cluster.add(ScriptedGenerator(cluster.plane), "generator-2")
    _, events = await cluster.finish()
    restarting = {e.attributes["worker_id"] for e in events if e.kind == "worker_restarting"}
    assert restarting == {"learner-0", "generator-0"}, kinds(events)
    assert not {"worker_failed", "worker_lost"} & set(kinds(events)), kinds(events)
    joined = {e.attributes["worker_id"] for e in events if e.kind == "worker_joined"}
    assert joined == {"reward-0", "generator-1", "learner-1", "generator-2"}


async def test_a_worker_that_does_not_come_back_is_lost_and_the_run_continues_without_it(
    cluster: Cluster, model: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(arrivals, "RESTART_TIMEOUT_S", 0.3)
    leaving = ScriptedGenerator(cluster.plane)
    restart_at_configure(leaving)
    await cluster.add_all(ScriptedGenerator(cluster.plane), leaving)
    _, events = await cluster.run_to_end(arithmetic_config(model))
    (lost,) = of_kind(events, "worker_lost")
    assert lost.attributes["worker_id"] == "generator-1" and "has not registered again" in lost.message, lost
