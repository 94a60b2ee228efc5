"""The coordinator over real gRPC, with workers that follow a script."""

import asyncio
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.run.runs import Runs
from services.coordinator.store.run_record import RunState
from services.coordinator.workers.registry import WorkerRegistry
from shoal.errors import AlreadyExists, DeadlineExceeded, FailedPrecondition, InvalidArgument, NotFound
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import worker_pb2
from tests.support.cluster import Cluster, kinds, of_kind
from tests.support.scripted_workers import (
    HELD_OUT,
    Plane,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedReward,
    arithmetic_config,
)
from tests.support.waiting import PATIENCE_S

GENERATOR = worker_pb2.WORKER_KIND_GENERATOR


async def test_a_run_leaves_its_config_metrics_events_ledger_and_checkpoints(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    config = arithmetic_config(model, checkpoint={"every_steps": 2, "keep_last": 2})
    run, events = await cluster.run_to_end(config, run_id="named")
    folder = cluster.data_dir / "named"
    assert json.loads((folder / "config.json").read_text())["grpo"]["group_size"] == 4
    rows = cluster.metrics()
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(0 <= row["objective/verifiable_correct_rate"] <= 1 for row in rows), rows
    assert {"state", "worker_joined", "publish", "step", "checkpoint", "exported"} <= set(kinds(events))
    left = [event.attributes["remaining_s"] for event in events if event.kind == "step"]
    assert left[-1] == 0 and all(seconds > 0 for seconds in left[:-1]), left
    [first, *_] = of_kind(events, "checkpoint")
    assert first.attributes["num_bytes"] > 0 and "is written: " in first.message, first
    committed = sorted(path.parent.name for path in folder.glob("checkpoints/*/manifest.json"))
    assert committed == ["step-00000004", "step-00000005"], committed
    assert run.last_checkpoint_id == "step-00000005"
    group = (await cluster.groups())[0]
    assert group.rollouts[0].text[:1] in ("0", "1") and len(group.trace_id) == 32, group


async def test_bad_configuration_is_refused_with_each_field(cluster: Cluster, model: Path) -> None:
    with pytest.raises(InvalidArgument, match="group_size") as caught:
        await cluster.start(arithmetic_config(model, grpo={"group_size": 0, "gruop": 2}))
    assert {violation.field for violation in caught.value.violations} == {"grpo.group_size", "grpo.gruop"}
    with pytest.raises(InvalidArgument, match="max_prompt_tokens"):
        await cluster.start(arithmetic_config(model, data={"max_prompt_tokens": 3}))
    with pytest.raises(InvalidArgument, match=r"model\.path"):
        await cluster.start(arithmetic_config(cluster.data_dir / "no-model"))


async def test_a_run_of_the_same_name_is_refused(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    await cluster.start(arithmetic_config(model, run={"num_steps": 1}), run_id="twice")
    await cluster.end()
    with pytest.raises(AlreadyExists, match="twice"):
        await cluster.start(arithmetic_config(model), run_id="twice")


async def test_a_run_without_workers_fails_and_names_the_missing_kinds(cluster: Cluster, model: Path) -> None:
    await cluster.add(cluster.learner, "learner-0")
    await cluster.start(arithmetic_config(model, coordinator={"worker_timeout_s": 0.5}))
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_FAILED
    assert all(word in run.message for word in ("generator", "reward", "worker_timeout_s")), run.message


async def test_a_paused_run_takes_no_step_until_it_is_resumed(cluster: Cluster, model: Path) -> None:
    generator = ScriptedGenerator(cluster.plane, delay_s=0.05)
    await cluster.add_all(generator)
    await cluster.start(arithmetic_config(model, run={"num_steps": 30}))
    await cluster.until("step")
    run = await cluster.pause()
    assert run.state == pb.RUN_STATE_PAUSED
    saved = await cluster.save_checkpoint()
    assert saved.checkpoint_id, "a paused run stands at a step boundary"
    version, completions = cluster.plane.policy_version, generator.num_completions
    await asyncio.sleep(0.5)
    assert cluster.plane.policy_version == version and generator.num_completions == completions
    assert (await cluster.pause()).state == pb.RUN_STATE_PAUSED
    run = await cluster.resume()
    assert run.state == pb.RUN_STATE_RUNNING
    await cluster.finish(30)


async def test_a_run_with_a_ledger_of_another_version_is_not_resumed_and_stays_unchanged(
    cluster: Cluster, model: Path
) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    await cluster.start(arithmetic_config(model, run={"num_steps": 2}), run_id="old")
    await cluster.end()
    for ledger in (cluster.data_dir / "old").rglob("*.sqlite"):
        with sqlite3.connect(ledger) as connection:
            connection.execute("PRAGMA user_version = 0")
    with pytest.raises(FailedPrecondition) as refused:
        await cluster.start({}, run_id="old", resume=True)
    assert refused.value.reason == "LEDGER_VERSION"
    run = await cluster.run()
    assert (run.state, run.attempt) == (pb.RUN_STATE_FINISHED, 0), run.message
    with pytest.raises(FailedPrecondition) as refused:
        await cluster.groups()
    assert refused.value.reason == "LEDGER_VERSION"


async def test_a_publish_that_a_generator_breaks_is_repeated_without_it(cluster: Cluster, model: Path) -> None:
    victim, other = ScriptedGenerator(cluster.plane), ScriptedGenerator(cluster.plane)
    await cluster.add_all(other, victim)
    cluster.learner.step_s = 0.1
    await cluster.start(arithmetic_config(model, run={"num_steps": 6}, weights={"timeout_s": 200}))
    await cluster.until("step", step=1)
    victim.die_in_load = True
    cluster.silence("generator-1")
    began = time.monotonic()
    events = await cluster.until("publish_failed")
    assert events[-1].attributes["worker_id"] == "generator-1", events[-1]
    events = await cluster.until(lambda event: event.kind == "publish" and event.sequence > events[-1].sequence)
    assert time.monotonic() - began < 200, "the repeat waited for weights.timeout_s"
    await cluster.finish()
    assert other.version.policy_version == 6


async def test_a_generator_that_joins_late_is_caught_up_without_a_step(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.01))
    await cluster.start(arithmetic_config(model, run={"num_steps": 1000}))
    await cluster.until("step", step=2)
    await cluster.pause()
    await cluster.save_checkpoint()  # Returns at a step boundary.
    late = ScriptedGenerator(cluster.plane)
    await cluster.add(late, "late")
    await asyncio.wait_for(late.loaded.wait(), PATIENCE_S)
    assert late.version == cluster.plane.version(), f"{late.version} is not {cluster.plane.version()}"


@pytest.mark.parametrize("is_refused", [False, True])
async def test_generators_that_share_the_gpu_sleep_while_the_learner_trains(
    cluster: Cluster, model: Path, is_refused: bool
) -> None:
    cluster.learner.refuse_steps = is_refused
    generator = ScriptedGenerator(cluster.plane)
    await cluster.add_all(generator)
    sections = {"grpo": {"max_staleness": 0}, "generator": {"sleep_while_training": True}, "run": {"num_steps": 3}}
    await cluster.start(arithmetic_config(model, **sections))
    await cluster.end()
    # They are awake before the publish, which leaves out who is not ready within seconds.
    published = [] if is_refused else ["LoadWeights"]
    assert generator.calls == ["LoadWeights", *["Sleep", "Wake", *published] * 3], generator.calls


async def test_runs_and_workers_can_be_listed_and_unknown_ones_are_not_found(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    await cluster.start(arithmetic_config(model, run={"num_steps": 1}), run_id="one")
    await cluster.end()
    listed = await cluster.stub.ListRuns(pb.ListRunsRequest(), timeout=60)
    assert [run.run_id for run in listed.runs] == ["one"]
    workers = await cluster.stub.ListWorkers(pb.ListWorkersRequest(), timeout=60)
    assert sorted(worker.worker_id for worker in workers.workers) == ["generator-0", "learner-0", "reward-0"]
    with pytest.raises(NotFound, match="three"):
        await cluster.stub.GetRun(pb.GetRunRequest(run_id="three"), timeout=60)
    with pytest.raises(NotFound):
        await cluster.pause()
    with pytest.raises(FailedPrecondition, match="ended"):
        await cluster.stub.PauseRun(pb.PauseRunRequest(run_id="one"), timeout=60)
    for token in ("x", "²", "9" * 30):
        with pytest.raises(InvalidArgument, match="page_token"):
            await cluster.stub.ListRollouts(pb.ListRolloutsRequest(page_token=token), timeout=60)


async def test_unknown_workers_have_to_register(cluster: Cluster) -> None:
    with pytest.raises(NotFound, match="register"):
        await cluster.stub.Heartbeat(pb.HeartbeatRequest(worker_id="nobody"), timeout=60)
    for wrong in ({"worker_id": ""}, {"kind": 0}, {"address": "nowhere"}, {"num_weight_ranks": -1}):
        fields: dict[str, Any] = {"worker_id": "w", "kind": GENERATOR, "address": "h:1"} | wrong
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            await cluster.stub.RegisterWorker(pb.RegisterWorkerRequest(**fields), timeout=60)


async def test_an_abandoned_run_is_failed_and_names_the_command_that_resumes_it(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.05))
    await cluster.start(arithmetic_config(model, run={"num_steps": 1000}), run_id="left")
    await cluster.until("step")
    path = cluster.data_dir / "left" / "run.json"
    other = Runs(cluster.data_dir, WorkerRegistry())
    assert other.find("left").state is RunState.RUNNING, "a run that is driven was taken for abandoned"
    with pytest.raises(FailedPrecondition, match="another coordinator"):
        await other.resume("left")
    await cluster.stop()
    await cluster.end()
    # A killed coordinator leaves a run without an end and without a process that has its lock.
    path.write_text(path.read_text().replace("STOPPED", "RUNNING"))
    record = other.find("left")
    assert record.state is RunState.FAILED and "shoal train --resume left" in record.message, record


async def test_a_checkpoint_without_a_waiting_caller_does_not_delay_the_end(cluster: Cluster, model: Path) -> None:
    await cluster.start(arithmetic_config(model, coordinator={"worker_timeout_s": 36_000}))
    with pytest.raises(DeadlineExceeded):
        await cluster.stub.SaveCheckpoint(pb.SaveCheckpointRequest(), timeout=0.3)
    await cluster.stop(pb.STOP_MODE_NOW)
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_STOPPED, run.message


async def test_a_step_is_reported_even_if_a_stop_was_requested_during_it(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    cluster.learner.may_step.clear()
    await cluster.start(arithmetic_config(model, run={"num_steps": 20}))
    await cluster.learner.stepping.wait()
    await cluster.stop()
    cluster.learner.may_step.set()
    run, events = await cluster.end()
    assert run.last_checkpoint_id == f"step-{run.policy_version:08d}" and run.policy_version == 1, run
    assert kinds(events).count("step") == 1, kinds(events)


async def test_a_resume_during_a_publish_leaves_no_generator_paused(cluster: Cluster, model: Path) -> None:
    generator = ScriptedGenerator(cluster.plane)
    await cluster.add_all(generator)
    cluster.learner.step_s = 0.5
    await cluster.start(arithmetic_config(model, run={"num_steps": 20}))
    await cluster.until("step")
    active = cluster.runs.active("")
    publisher = active.commands._publisher
    assert publisher is not None
    async with publisher.lock:  # A publish takes it too, and reads the pause at its end.
        asked = [asyncio.create_task(active.commands.pause()), asyncio.create_task(active.commands.resume())]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await active.commands.stay_paused()
    await asyncio.gather(*asked)
    assert generator.running.is_set() and (await cluster.run()).state == pb.RUN_STATE_RUNNING


async def test_the_loss_of_a_learner_that_the_run_does_not_use_is_harmless(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    await cluster.start(arithmetic_config(model))
    await cluster.until("step")
    cluster.learner.may_step.clear()  # The run must not end before the other one is lost.
    await cluster.add(ScriptedLearner(Plane()), "other")
    await cluster.until("worker_joined", worker_id="other")
    cluster.registry.report_lost("other", "it was ended")
    await cluster.kill("other")
    await cluster.until("worker_lost")
    cluster.learner.may_step.set()
    _, events = await cluster.finish()
    assert "worker_lost" in kinds(events), kinds(events)


async def test_a_catch_up_does_not_overlap_a_step(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    cluster.learner.step_s = 0.5
    await cluster.start(arithmetic_config(model, run={"num_steps": 6}))
    await cluster.until("step")
    await cluster.learner.stepping.wait()
    late = ScriptedGenerator(cluster.plane)
    await cluster.add(late, "late")
    await cluster.finish()
    assert late.num_loads, "the late generator got no weights"
    assert not cluster.learner.num_publishes_in_step, "weights were published behind a step, under the old version"


async def test_a_reward_service_that_is_not_configured_is_replaced_by_another(cluster: Cluster, model: Path) -> None:
    fresh = ScriptedReward()
    fresh.unconfigured = True
    await cluster.add_all(ScriptedGenerator(cluster.plane), rewards=(fresh, ScriptedReward()))
    run, events = await cluster.run_to_end(arithmetic_config(model))
    assert "scoring_repeated" in kinds(events), run.message


async def test_a_pause_during_an_evaluation_may_be_longer_than_the_deadline_of_a_question(
    cluster: Cluster, model: Path
) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.2))
    sections = {"run": {"num_steps": 1}, "coordinator": {"sampling_timeout_s": 1.5}, "evaluation": HELD_OUT}
    await cluster.start(arithmetic_config(model, **sections))
    await cluster.until("publish")
    await cluster.pause()
    await asyncio.sleep(2.0)
    await cluster.resume()
    _, events = await cluster.finish()
    assert kinds(events).count("evaluation") == 2, kinds(events)


async def test_a_question_without_an_answer_is_not_scored(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=30.0))
    await cluster.start(arithmetic_config(model, evaluation=HELD_OUT, coordinator={"sampling_timeout_s": 0.3}))
    events = await cluster.until("evaluation")
    assert events[-1].kind == "evaluation" and events[-1].attributes["num_scored"] == 0, kinds(events)
