"""The coordinator over real gRPC, with workers that follow a script."""

import asyncio
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.runs import Runs
from services.coordinator.workers import WorkerRegistry
from shoal.errors import AlreadyExists, DeadlineExceeded, FailedPrecondition, InvalidArgument, NotFound
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import worker_pb2
from tests.house import House, kinds
from tests.scripted import (
    Plane,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedReward,
    arithmetic_config,
)

GENERATOR = worker_pb2.WORKER_KIND_GENERATOR


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
async def test_no_trained_group_is_older_than_the_bound(house: House, model: Path, max_staleness: int) -> None:
    house.learner.step_s = 0.02
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.05), ScriptedGenerator(house.plane, delay_s=0.02))
    config = arithmetic_config(model, grpo={"max_staleness": max_staleness}, run={"num_steps": 12})
    await house.start(config)
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    groups = await house.groups()
    num_skipped = kinds(events).count("step_skipped")
    trained = [group for group in groups if group.state == "TRAINED"]
    worst = max(group.staleness for group in trained)
    assert worst <= max_staleness, f"staleness {worst} for a bound of {max_staleness}"
    assert worst == max_staleness, f"a bound of {max_staleness} was never used: worst {worst}"
    assert len(groups) == (12 + num_skipped) * 4, f"{len(groups)} groups were issued for {12 + num_skipped} steps of 4"
    assert {group.train_step for group in trained} == set(range(1, 13))


async def test_a_run_leaves_its_config_metrics_events_ledger_and_checkpoints(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane))
    run = await house.start(arithmetic_config(model, checkpoint={"every_steps": 2, "keep_last": 2}), run_id="named")
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    folder = house.data_dir / "named"
    assert json.loads((folder / "config.json").read_text())["grpo"]["group_size"] == 4
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(0 <= row["objective/verifiable_correct_rate"] <= 1 for row in rows), rows
    assert {"state", "worker_joined", "publish", "step", "checkpoint", "exported"} <= set(kinds(events))
    committed = sorted(path.parent.name for path in folder.glob("checkpoints/*/manifest.json"))
    assert committed == ["step-00000004", "step-00000005"], committed
    assert run.last_checkpoint_id == "step-00000005"
    group = (await house.groups())[0]
    assert group.rollouts[0].text[:1] in ("0", "1") and len(group.trace_id) == 32, group


async def test_bad_configuration_is_refused_with_each_field(house: House, model: Path) -> None:
    with pytest.raises(InvalidArgument, match="group_size") as caught:
        await house.start(arithmetic_config(model, grpo={"group_size": 0, "gruop": 2}))
    assert {violation.field for violation in caught.value.violations} == {"grpo.group_size", "grpo.gruop"}
    with pytest.raises(InvalidArgument, match="max_prompt_tokens"):
        await house.start(arithmetic_config(model, data={"max_prompt_tokens": 3}))
    with pytest.raises(InvalidArgument, match=r"model\.path"):
        await house.start(arithmetic_config(house.data_dir / "no-model"))


async def test_a_verifier_that_the_reward_service_does_not_have_ends_the_run_before_a_step(
    house: House, model: Path, tmp_path: Path
) -> None:
    await house.add_all(ScriptedGenerator(house.plane))
    row = {"messages": "1 + 1?", "ground_truth": "2", "dataset": "string_f1"}
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    await house.start(arithmetic_config(model, data={"sources": [{"path": str(tmp_path / "data.jsonl")}]}))
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FAILED and "string_f1" in run.message, run.message
    assert not house.learner.batches


async def test_a_verifier_that_nobody_has_is_refused_when_the_data_is_read(
    house: House, model: Path, tmp_path: Path
) -> None:
    row = {"messages": "1 + 1?", "ground_truth": "2", "dataset": "no_such_verifier"}
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InvalidArgument, match="no_such_verifier"):
        await house.start(arithmetic_config(model, data={"sources": [{"path": str(tmp_path / "data.jsonl")}]}))


async def test_a_second_run_is_refused_while_one_is_active(house: House, model: Path) -> None:
    await house.start(arithmetic_config(model), run_id="first")
    with pytest.raises(FailedPrecondition, match="first"):
        await house.start(arithmetic_config(model))


async def test_a_run_of_the_same_name_is_refused(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane))
    await house.start(arithmetic_config(model, run={"num_steps": 1}), run_id="twice")
    await house.end()
    with pytest.raises(AlreadyExists, match="twice"):
        await house.start(arithmetic_config(model), run_id="twice")


async def test_a_run_without_workers_fails_and_names_what_is_missing(house: House, model: Path) -> None:
    await house.add(worker_pb2.WORKER_KIND_LEARNER, house.learner, "learner-0")
    await house.start(arithmetic_config(model, coordinator={"worker_timeout_s": 0.5}))
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FAILED
    assert "generator" in run.message and "reward" in run.message and "worker_timeout_s" in run.message, run.message


async def test_a_paused_run_takes_no_step_until_it_is_resumed(house: House, model: Path) -> None:
    generator = ScriptedGenerator(house.plane, delay_s=0.05)
    await house.add_all(generator)
    await house.start(arithmetic_config(model, run={"num_steps": 30}))
    await house.until(lambda event: event.kind == "step")
    run = (await house.stub.PauseRun(pb.PauseRunRequest(), timeout=10)).run
    assert run.state == pb.RUN_STATE_PAUSED
    await asyncio.sleep(0.3)
    version, completions = house.plane.policy_version, generator.num_completions
    await asyncio.sleep(0.5)
    assert house.plane.policy_version <= version and generator.num_completions == completions
    assert (await house.stub.PauseRun(pb.PauseRunRequest(), timeout=10)).run.state == pb.RUN_STATE_PAUSED
    saved = await house.stub.SaveCheckpoint(pb.SaveCheckpointRequest(), timeout=10)
    assert saved.checkpoint_id, "a paused run stands at a step boundary"
    run = (await house.stub.ResumeRun(pb.ResumeRunRequest(), timeout=10)).run
    assert run.state == pb.RUN_STATE_RUNNING
    run, _ = await house.end()
    assert (run.state, run.policy_version) == (pb.RUN_STATE_FINISHED, 30), run.message


async def test_a_stopped_run_writes_a_checkpoint_and_resumes_there(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.02))
    await house.start(arithmetic_config(model, run={"num_steps": 12}), run_id="stopped")
    await house.until(lambda event: event.kind == "step" and event.attributes["step"] == 3)
    await house.stub.StopRun(pb.StopRunRequest(mode=pb.STOP_MODE_NOW), timeout=10)
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_STOPPED and 3 <= run.policy_version < 12, run.message
    stopped_at = run.policy_version
    assert run.last_checkpoint_id == f"step-{stopped_at:08d}"
    await house.start({}, run_id="stopped", resume=True)
    run, events = await house.end()
    assert (run.state, run.policy_version, run.attempt) == (pb.RUN_STATE_FINISHED, 12, 1), run.message
    assert "restored" in kinds(events)
    await assert_every_group_was_used_once(house, num_steps=12)


async def test_a_run_of_another_versions_ledger_is_not_resumed_and_stays_as_it_is(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane))
    await house.start(arithmetic_config(model, run={"num_steps": 2}), run_id="old")
    await house.end()
    for ledger in (house.data_dir / "old").rglob("*.sqlite"):
        with sqlite3.connect(ledger) as connection:
            connection.execute("PRAGMA user_version = 0")
    with pytest.raises(FailedPrecondition, match="has version 0 of its tables"):
        await house.start({}, run_id="old", resume=True)
    run = await house.run()
    assert (run.state, run.attempt) == (pb.RUN_STATE_FINISHED, 0), run.message
    with pytest.raises(FailedPrecondition, match="has version 0 of its tables"):
        await house.groups()


async def test_a_draining_run_trains_on_what_is_in_flight(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.05))
    await house.start(arithmetic_config(model, run={"num_steps": 40}, grpo={"max_staleness": 3}))
    await house.until(lambda event: event.kind == "step" and event.attributes["step"] == 2)
    await house.stub.StopRun(pb.StopRunRequest(mode=pb.STOP_MODE_DRAIN), timeout=10)
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_STOPPED, run.message
    states = {group.state for group in await house.groups()}
    assert states <= {"TRAINED", "DROPPED"}, states
    assert 4 <= run.policy_version < 40, run.policy_version


async def assert_every_group_was_used_once(house: House, num_steps: int) -> None:
    groups = await house.groups()
    assert [group.order_number for group in groups] == list(range(len(groups))) and len(groups) >= num_steps * 4
    trained = [group.group_id for group in groups if group.state == "TRAINED"]
    given = [
        message.group.group_id for batch in house.learner.batches for message in batch if message.HasField("group")
    ]
    assert sorted(given) == sorted(trained), "the learner's batches and the ledger differ"
    rows = [json.loads(line) for line in next(house.data_dir.glob("*/metrics.jsonl")).read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, num_steps + 1))


async def test_a_killed_generator_costs_only_what_it_was_sampling(house: House, model: Path) -> None:
    victim, other = ScriptedGenerator(house.plane, delay_s=0.1), ScriptedGenerator(house.plane, delay_s=0.1)
    await house.add_all(other)
    server = await house.add(worker_pb2.WORKER_KIND_GENERATOR, victim, "victim")
    await house.start(arithmetic_config(model, run={"num_steps": 10}))
    await house.until(lambda event: event.kind == "step" and event.attributes["step"] == 2)
    await house.kill(server, "victim")
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    assert any(event.kind == "worker_lost" and event.attributes["worker_id"] == "victim" for event in events)
    assert "group_reissued" in kinds(events), kinds(events)
    await assert_every_group_was_used_once(house, num_steps=10)


async def test_a_publish_that_a_generator_breaks_is_repeated_without_it(house: House, model: Path) -> None:
    victim, other = ScriptedGenerator(house.plane), ScriptedGenerator(house.plane)
    await house.add_all(other, victim)
    house.learner.step_s = 0.1
    await house.start(arithmetic_config(model, run={"num_steps": 6}))
    await house.until(lambda event: event.kind == "step" and event.attributes["step"] == 1)
    victim.die_in_load = True
    house._beats["generator-1"].cancel()
    began = time.monotonic()
    events = await house.until(lambda event: event.kind == "publish_failed")
    assert events[-1].attributes["worker_id"] == "generator-1", events[-1]
    events = await house.until(lambda event: event.kind == "publish" and event.sequence > events[-1].sequence)
    assert time.monotonic() - began < 10, "the repeat took longer than weights.timeout_s"
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    assert other._version.policy_version == 6


async def test_a_generator_that_joins_late_is_caught_up_without_a_step(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.01))
    await house.start(arithmetic_config(model, run={"num_steps": 1000}))
    await house.until(lambda event: event.kind == "step" and event.attributes["step"] == 2)
    await house.stub.PauseRun(pb.PauseRunRequest(), timeout=10)
    await asyncio.sleep(0.3)
    late = ScriptedGenerator(house.plane)
    await house.add(worker_pb2.WORKER_KIND_GENERATOR, late, "late")
    await asyncio.wait_for(late.loaded.wait(), 15)
    assert late._version == house.plane.version(), f"{late._version} is not {house.plane.version()}"


async def test_a_generator_with_other_bytes_than_were_sent_serves_nothing(house: House, model: Path) -> None:
    bad = ScriptedGenerator(house.plane)
    bad.corrupt = True
    await house.add_all(ScriptedGenerator(house.plane), bad)
    await house.start(arithmetic_config(model, run={"num_steps": 3}))
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    failed = [event for event in events if event.kind == "publish_failed"]
    assert failed and failed[0].attributes["reason"] == "WEIGHTS_CORRUPT", kinds(events)
    assert bad.num_completions == 0, f"{bad.num_completions} completions came from corrupt weights"


async def test_a_reward_service_that_dies_is_replaced_by_another(house: House, model: Path) -> None:
    victim, other = ScriptedReward(), ScriptedReward()
    victim.die_at = 10
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.02), rewards=(victim, other))
    await house.start(arithmetic_config(model, run={"num_steps": 6}))
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    assert "scoring_repeated" in kinds(events), kinds(events)
    scores = [rollout.score for group in await house.groups() for rollout in group.rollouts]
    assert len(scores) >= 6 * 4 * 4, f"{len(scores)} scores for 6 steps of 4 groups of 4"


async def test_failed_verifiers_are_no_rewards_of_zero(house: House, model: Path) -> None:
    reward = ScriptedReward()
    reward.failing = True
    await house.add_all(ScriptedGenerator(house.plane), rewards=(reward,))
    await house.start(arithmetic_config(model, reward={"max_failed_share": 1.0}))
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FAILED and "max_skipped_steps" in run.message, run.message
    assert not house.learner.batches and kinds(events).count("step_skipped") == 3


async def test_steps_that_are_not_finite_end_the_run_with_the_reason(house: House, model: Path) -> None:
    house.learner.refuse_steps = True
    await house.add_all(ScriptedGenerator(house.plane))
    await house.start(arithmetic_config(model))
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FAILED and "not finite" in run.message, run.message
    states = {group.drop_reason for group in await house.groups() if group.state == "DROPPED"}
    assert "skipped_step" in states, states


@pytest.mark.parametrize("is_refused", [False, True])
async def test_generators_that_share_the_gpu_sleep_while_the_learner_trains(
    house: House, model: Path, is_refused: bool
) -> None:
    house.learner.refuse_steps = is_refused
    generator = ScriptedGenerator(house.plane)
    await house.add_all(generator)
    sections = {"grpo": {"max_staleness": 0}, "generator": {"sleep_while_training": True}, "run": {"num_steps": 3}}
    await house.start(arithmetic_config(model, **sections))
    await house.end()
    # A step that was applied is published, which wakes them; after one that was not they are woken.
    woken_by = "Wake" if is_refused else "LoadWeights"
    assert generator.calls == ["LoadWeights", *["Sleep", woken_by] * 3], generator.calls


async def test_a_lost_learner_ends_the_run_with_a_checkpoint_to_resume_from(house: House, model: Path) -> None:
    await house.add(worker_pb2.WORKER_KIND_REWARD, ScriptedReward(), "reward-0")
    await house.add(worker_pb2.WORKER_KIND_GENERATOR, ScriptedGenerator(house.plane, delay_s=0.02), "generator-0")
    server = await house.add(worker_pb2.WORKER_KIND_LEARNER, house.learner, "learner-0")
    await house.start(arithmetic_config(model, run={"num_steps": 1000}, checkpoint={"every_steps": 2}), run_id="orphan")
    await house.until(lambda event: event.kind == "step" and event.attributes["step"] == 5)
    await house.kill(server, "learner-0")
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FAILED, run.message
    assert "learner" in run.message and f"--resume {run.run_id}" in run.message, run.message
    saved_at = int(run.last_checkpoint_id.removeprefix("step-"))
    assert saved_at >= 4
    await house.add(worker_pb2.WORKER_KIND_LEARNER, house.learner, "learner-1")
    await house.start({}, run_id="orphan", resume=True)
    events = await house.until(lambda event: event.kind == "step" and event.attributes["step"] == saved_at + 3)
    restored = [event for event in events if event.kind == "restored"]
    assert restored and restored[0].attributes["policy_version"] == saved_at, restored


async def test_runs_and_workers_can_be_listed_and_unknown_ones_are_not_found(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane))
    await house.start(arithmetic_config(model, run={"num_steps": 1}), run_id="one")
    await house.end()
    listed = await house.stub.ListRuns(pb.ListRunsRequest(), timeout=10)
    assert [run.run_id for run in listed.runs] == ["one"]
    workers = await house.stub.ListWorkers(pb.ListWorkersRequest(), timeout=10)
    assert sorted(worker.worker_id for worker in workers.workers) == ["generator-0", "learner-0", "reward-0"]
    with pytest.raises(NotFound, match="three"):
        await house.stub.GetRun(pb.GetRunRequest(run_id="three"), timeout=10)
    with pytest.raises(NotFound):
        await house.stub.PauseRun(pb.PauseRunRequest(), timeout=10)
    with pytest.raises(FailedPrecondition, match="ended"):
        await house.stub.PauseRun(pb.PauseRunRequest(run_id="one"), timeout=10)
    for token in ("x", "²", "9" * 30):
        with pytest.raises(InvalidArgument, match="page_token"):
            await house.stub.ListRollouts(pb.ListRolloutsRequest(page_token=token), timeout=10)


async def test_workers_that_are_not_known_have_to_register(house: House) -> None:
    with pytest.raises(NotFound, match="register"):
        await house.stub.Heartbeat(pb.HeartbeatRequest(worker_id="nobody"), timeout=10)
    for wrong in ({"worker_id": ""}, {"kind": 0}, {"address": "nowhere"}, {"num_weight_ranks": -1}):
        fields: dict[str, Any] = {"worker_id": "w", "kind": GENERATOR, "address": "h:1"} | wrong
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            await house.stub.RegisterWorker(pb.RegisterWorkerRequest(**fields), timeout=10)


async def test_a_run_that_a_coordinator_left_behind_is_failed_with_the_way_to_resume(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.05))
    await house.start(arithmetic_config(model, run={"num_steps": 1000}), run_id="left")
    await house.until(lambda event: event.kind == "step")
    path = house.data_dir / "left" / "run.json"
    other = Runs(house.data_dir, WorkerRegistry())
    other.close_abandoned()
    assert json.loads(path.read_text())["state"] == "RUNNING", "a run that is driven was taken for abandoned"
    with pytest.raises(FailedPrecondition, match="another coordinator"):
        await other.resume("left")
    await house.stub.StopRun(pb.StopRunRequest(), timeout=10)
    await house.end()
    # What a killed coordinator leaves: a run without an end, and nobody who holds its lock.
    path.write_text(path.read_text().replace("STOPPED", "RUNNING"))
    other.close_abandoned()
    record = json.loads(path.read_text())
    assert record["state"] == "FAILED" and "shoal train --resume left" in record["message"], record


async def test_a_checkpoint_that_nobody_waits_for_any_more_does_not_keep_the_end_back(
    house: House, model: Path
) -> None:
    await house.start(arithmetic_config(model, coordinator={"worker_timeout_s": 1.0}))
    with pytest.raises(DeadlineExceeded):
        await house.stub.SaveCheckpoint(pb.SaveCheckpointRequest(), timeout=0.3)
    run, _ = await house.end(timeout_s=10)
    assert run.state == pb.RUN_STATE_FAILED, run.message


async def test_a_step_during_which_a_stop_was_asked_for_is_reported(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane))
    house.learner.step_s = 0.5
    await house.start(arithmetic_config(model, run={"num_steps": 20}))
    await house.until(lambda event: event.kind == "publish")
    await house.learner.stepping.wait()
    await house.stub.StopRun(pb.StopRunRequest(), timeout=10)
    run, events = await house.end()
    assert run.last_checkpoint_id == f"step-{run.policy_version:08d}" and run.policy_version == 1, run
    assert kinds(events).count("step") == 1, kinds(events)


async def test_a_resume_that_meets_a_publish_leaves_no_generator_paused(house: House, model: Path) -> None:
    generator = ScriptedGenerator(house.plane)
    await house.add_all(generator)
    house.learner.step_s = 0.5
    await house.start(arithmetic_config(model, run={"num_steps": 20}))
    await house.until(lambda event: event.kind == "step")
    active = house.runs.active("")
    async with active._publisher.lock:  # As a publish does, which looks at the pause when it is through.
        asked = [asyncio.create_task(active.pause()), asyncio.create_task(active.resume())]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await active._stay_paused()
    await asyncio.gather(*asked)
    assert generator._running.is_set() and (await house.run()).state == pb.RUN_STATE_RUNNING


async def test_a_learner_that_the_run_does_not_use_may_go_away(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.02))
    await house.start(arithmetic_config(model, run={"num_steps": 15}))
    await house.until(lambda event: event.kind == "step")
    server = await house.add(worker_pb2.WORKER_KIND_LEARNER, ScriptedLearner(Plane()), "other")
    await house.until(lambda event: event.kind == "worker_joined" and event.attributes["worker_id"] == "other")
    house.registry.report_lost("other", "it was ended")
    await house.kill(server, "other")
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED and "worker_lost" in kinds(events), run.message


async def test_a_catch_up_does_not_meet_a_step(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane))
    house.learner.step_s = 0.5
    await house.start(arithmetic_config(model, run={"num_steps": 6}))
    await house.until(lambda event: event.kind == "step")
    await house.learner.stepping.wait()
    late = ScriptedGenerator(house.plane)
    await house.add(worker_pb2.WORKER_KIND_GENERATOR, late, "late")
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED and late.num_loads, run.message
    assert not house.learner.num_publishes_in_step, "weights were published behind a step, under the old version"


async def test_a_reward_service_that_is_not_configured_is_replaced_by_another(house: House, model: Path) -> None:
    fresh = ScriptedReward()
    fresh.unconfigured = True
    await house.add_all(ScriptedGenerator(house.plane), rewards=(fresh, ScriptedReward()))
    await house.start(arithmetic_config(model))
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED and "scoring_repeated" in kinds(events), run.message


async def test_a_pause_during_an_evaluation_may_be_longer_than_the_deadline_of_a_question(
    house: House, model: Path
) -> None:
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.4))
    evaluation = {"sources": [{"task": "arithmetic", "task_size": 50, "task_seed": 1}], "num_prompts": 4}
    sections = {"run": {"num_steps": 1}, "coordinator": {"sampling_timeout_s": 2.0}, "evaluation": evaluation}
    await house.start(arithmetic_config(model, **sections))
    await house.until(lambda event: event.kind == "publish")
    await house.stub.PauseRun(pb.PauseRunRequest(), timeout=10)
    await asyncio.sleep(2.5)
    await house.stub.ResumeRun(pb.ResumeRunRequest(), timeout=10)
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED and kinds(events).count("evaluation") == 2, run.message


async def test_a_question_without_an_answer_is_not_scored(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane, delay_s=30.0))
    evaluation = {"sources": [{"task": "arithmetic", "task_size": 50, "task_seed": 1}], "num_prompts": 4}
    await house.start(arithmetic_config(model, evaluation=evaluation, coordinator={"sampling_timeout_s": 0.3}))
    events = await house.until(lambda event: event.kind == "evaluation")
    assert events[-1].kind == "evaluation" and events[-1].attributes["num_scored"] == 0, kinds(events)


async def test_an_outage_of_rewards_pauses_the_run_and_what_failed_is_scored_again(house: House, model: Path) -> None:
    reward = ScriptedReward()
    reward.failing = True
    await house.add_all(ScriptedGenerator(house.plane), rewards=(reward,))
    await house.start(arithmetic_config(model, run={"num_steps": 3}, reward={"outage_window": 8}))
    events = await house.until(lambda event: event.kind == "reward_outage")
    assert "shoal run resume" in events[-1].message, events[-1].message
    await house.until(lambda event: event.kind == "state" and event.attributes["state"] == "PAUSED")
    reward.failing = False
    await house.stub.ResumeRun(pb.ResumeRunRequest(), timeout=10)
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED and run.policy_version == 3, run.message
    assert kinds(events).count("reward_outage") == 1, kinds(events)
