"""A second run on workers that served a first one and start over for it."""

import asyncio
from pathlib import Path
from typing import Any

from services.coordinator import fleet
from shoal.errors import Unavailable
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import worker_pb2
from shoal.worker.renewal import STARTING_OVER
from tests.house import House, kinds
from tests.scripted import ScriptedGenerator, ScriptedLearner, ScriptedReward, arithmetic_config

LEARNER, GENERATOR = worker_pb2.WORKER_KIND_LEARNER, worker_pb2.WORKER_KIND_GENERATOR


def leaves(servicer: Any) -> asyncio.Event:
    """Has a scripted worker, before it serves, start over at a Configure; set once it has said so."""
    left = asyncio.Event()

    async def configure(request: Any, context: Any) -> Any:
        left.set()
        raise Unavailable("it starts over", reason=STARTING_OVER, retry_after_s=15)

    servicer.Configure = configure
    return left


async def test_a_run_waits_for_every_worker_that_starts_over_for_it_and_loses_none(house: House, model: Path) -> None:
    leaving = ScriptedGenerator(house.plane)
    learner_left, generator_left = leaves(house.learner), leaves(leaving)
    await house.add(LEARNER, house.learner, "learner-0")
    await house.add(worker_pb2.WORKER_KIND_REWARD, ScriptedReward(), "reward-0")
    old_generator = await house.add(GENERATOR, leaving, "generator-0")
    await house.add(GENERATOR, ScriptedGenerator(house.plane), "generator-1")
    await house.start(arithmetic_config(model, coordinator={"worker_timeout_s": 3}))
    async with asyncio.timeout(20):
        await asyncio.gather(learner_left.wait(), generator_left.wait())
    await house.kill(old_generator, "generator-0")
    await house.add(LEARNER, ScriptedLearner(house.plane), "learner-1")
    await house.until(lambda event: event.kind == "worker_joined" and event.attributes["worker_id"] == "learner-1")
    # Longer than the run waits for workers that are merely missing.
    await asyncio.sleep(4)
    assert (await house.run()).state == pb.RUN_STATE_STARTING, "it did not wait for its second generator"
    await house.add(GENERATOR, ScriptedGenerator(house.plane), "generator-2")
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    restarting = {e.attributes["worker_id"] for e in events if e.kind == "worker_restarting"}
    assert restarting == {"learner-0", "generator-0"}, kinds(events)
    assert not {"worker_failed", "worker_lost"} & set(kinds(events)), kinds(events)
    joined = {e.attributes["worker_id"] for e in events if e.kind == "worker_joined"}
    assert joined == {"reward-0", "generator-1", "learner-1", "generator-2"}


async def test_a_worker_that_does_not_come_back_is_lost_and_the_run_goes_on_without_it(
    house: House, model: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(fleet, "RESTART_TIMEOUT_S", 1.0)
    leaving = ScriptedGenerator(house.plane)
    leaves(leaving)
    await house.add_all(ScriptedGenerator(house.plane), leaving)
    await house.start(arithmetic_config(model))
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    (lost,) = [event for event in events if event.kind == "worker_lost"]
    assert lost.attributes["worker_id"] == "generator-1" and "has not registered again" in lost.message, lost
