"""The ways to end a run, and pauses before it trains."""

import asyncio
from itertools import groupby
from pathlib import Path
from typing import Any

from shoal.v1 import coordinator_pb2 as pb
from tests.support.cluster import Cluster, kinds
from tests.support.scripted_workers import HELD_OUT, ScriptedGenerator, ScriptedReward, arithmetic_config

QUESTIONS = HELD_OUT | {"on_start": False}


async def stop(cluster: Cluster, mode: pb.StopMode.ValueType) -> tuple[pb.Run, list[pb.RunEvent]]:
    await cluster.stop(mode)
    return await cluster.end()


async def start_slowly(cluster: Cluster, model: Path, **sections: dict[str, Any]) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.05))
    await cluster.start(arithmetic_config(model, run={"num_steps": 40}, evaluation=QUESTIONS, **sections))
    await cluster.until("step", step=2)


async def test_a_drained_run_ends_with_a_checkpoint_an_evaluation_and_its_model(cluster: Cluster, model: Path) -> None:
    await start_slowly(cluster, model)
    run, events = await stop(cluster, pb.STOP_MODE_DRAIN)
    assert run.state == pb.RUN_STATE_STOPPED and 2 < run.policy_version < 40, run.message
    assert {group.state for group in await cluster.groups()} <= {"TRAINED", "DROPPED"}, "a group was left in flight"
    last = [event for event in events if event.kind in ("checkpoint", "evaluation", "exported")]
    assert kinds(last) == ["checkpoint", "evaluation", "exported"], kinds(events)
    assert {event.attributes["policy_version"] for event in last} == {run.policy_version}, last


async def test_a_run_that_stops_now_ends_with_a_checkpoint_alone(cluster: Cluster, model: Path) -> None:
    await start_slowly(cluster, model)
    run, events = await stop(cluster, pb.STOP_MODE_NOW)
    assert run.state == pb.RUN_STATE_STOPPED and run.last_checkpoint_id == f"step-{run.policy_version:08d}", run
    assert not {"evaluation", "exported"} & set(kinds(events)), kinds(events)


async def test_a_stop_before_the_workers_come_ends_the_run_at_once(cluster: Cluster, model: Path) -> None:
    await cluster.start(arithmetic_config(model, coordinator={"worker_timeout_s": 36_000}))
    run, _ = await stop(cluster, pb.STOP_MODE_DRAIN)
    assert run.state == pb.RUN_STATE_STOPPED, run.message


async def test_a_stop_in_the_last_evaluation_leaves_it_and_the_model_to_a_resume(cluster: Cluster, model: Path) -> None:
    reward = ScriptedReward()
    reward.held_source = "arithmetic@1"
    reward.may_score.clear()
    await cluster.add_all(ScriptedGenerator(cluster.plane), rewards=(reward,))
    await cluster.start(arithmetic_config(model, run={"num_steps": 2}, evaluation=QUESTIONS), run_id="stopped")
    await cluster.until("checkpoint")
    run, events = await stop(cluster, pb.STOP_MODE_NOW)
    assert run.state == pb.RUN_STATE_STOPPED and "exported" not in kinds(events), run.message
    reward.may_score.set()
    _, events = await cluster.run_to_end({}, run_id="stopped", resume=True)
    assert [kind for kind in kinds(events) if kind in ("evaluation", "exported")] == ["evaluation", "exported"]


async def test_a_run_that_waits_for_workers_says_so_after_a_pause(cluster: Cluster, model: Path) -> None:
    await cluster.start(arithmetic_config(model, run={"num_steps": 1}))
    await cluster.until("state")
    paused = await cluster.pause()
    resumed = await cluster.resume()
    assert (paused.state, resumed.state) == (pb.RUN_STATE_PAUSED, pb.RUN_STATE_STARTING), (paused, resumed)
    await cluster.pause()
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    await cluster.until("publish")
    await asyncio.sleep(0)
    assert (await cluster.run()).state == pb.RUN_STATE_PAUSED
    await cluster.resume()
    _, events = await cluster.finish()
    states = [event.attributes["state"] for event in events if event.kind == "state"]
    # The second pause is told once more when the workers are there, without the wait for them.
    assert [state for state, _ in groupby(states)] == [
        "STARTING", "PAUSED", "STARTING", "PAUSED", "RUNNING", "FINISHED",
    ], states  # fmt: skip
