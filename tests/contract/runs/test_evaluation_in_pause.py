"""Evaluation of a paused run: it stays paused, and samples nothing for training meanwhile."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import FailedPrecondition
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import worker_pb2
from tests.support.cluster import Cluster, kinds
from tests.support.scripted_workers import ScriptedGenerator, arithmetic_config

NUM_PROMPTS = 6


def config(model: Path, *, on_start: bool = False, **sections: dict[str, Any]) -> dict[str, Any]:
    """Configures a run with held-out questions."""
    questions = {"sources": [{"task": "arithmetic", "task_size": 50, "task_seed": 1}], "num_prompts": NUM_PROMPTS}
    return arithmetic_config(model, evaluation=questions | {"on_start": on_start}, **sections)


async def evaluate(cluster: Cluster) -> pb.EvaluateResponse:
    return await cluster.stub.Evaluate(pb.EvaluateRequest(), timeout=60)


async def until_questions_arrive(generator: ScriptedGenerator, num_questions: int) -> None:
    async with generator.asked, asyncio.timeout(120):
        await generator.asked.wait_for(
            lambda: sum("/evaluation-" in request.request_id for request in generator.requests) >= num_questions
        )


async def until_training_is_sampled(generator: ScriptedGenerator) -> None:
    async with generator.asked, asyncio.timeout(120):
        await generator.asked.wait_for(lambda: bool(generator.requests))


async def test_a_paused_run_is_evaluated_again_and_again_and_samples_nothing_for_training(
    cluster: Cluster, model: Path
) -> None:
    generators = [ScriptedGenerator(cluster.plane, delay_s=0.05) for _ in range(2)]
    await cluster.add_all(*generators)
    await cluster.start(config(model, run={"num_steps": 6}))
    await cluster.until(lambda event: event.kind == "step" and event.attributes["step"] == 2)
    await cluster.stub.PauseRun(pb.PauseRunRequest(), timeout=60)
    await evaluate(cluster)  # A publish that was under way lets the generators sample until it ends.
    paused_at = [len(generator.sampled) for generator in generators]
    for _ in range(2):
        answer = await evaluate(cluster)
        run = await cluster.run()
        assert run.state == pb.RUN_STATE_PAUSED and answer.version.policy_version == run.policy_version >= 2, run
        assert answer.num_scored == NUM_PROMPTS and 0 < answer.metrics["time/evaluating"] < 60, answer.metrics
        assert answer.metrics["eval/actor_tokens_per_second"] < 1e6, answer.metrics
    in_pause = [name for generator, n in zip(generators, paused_at, strict=True) for name in generator.sampled[n:]]
    assert len(in_pause) == 2 * NUM_PROMPTS, in_pause
    assert all("/evaluation-" in name for name in in_pause), in_pause
    await cluster.stub.ResumeRun(pb.ResumeRunRequest(), timeout=60)
    run, events = await cluster.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    assert "group_reissued" not in kinds(events), kinds(events)
    trained = [group.order_number for group in await cluster.groups() if group.state == "TRAINED"]
    assert len(trained) == len(set(trained)), trained
    rows = [json.loads(line) for line in (cluster.data_dir / run.run_id / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "eval/num_prompts" not in row] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("inflight_updates", [True, False])
async def test_a_run_that_is_paused_in_a_step_publishes_it_to_be_evaluated(
    cluster: Cluster, model: Path, inflight_updates: bool
) -> None:
    cluster.learner.step_s = 1.0
    generator = ScriptedGenerator(cluster.plane)
    await cluster.add_all(generator)
    weights = {"inflight_updates": inflight_updates}
    await cluster.start(config(model, run={"num_steps": 1000}, weights=weights))
    await cluster.until(lambda event: event.kind == "step")
    await cluster.learner.stepping.wait()
    generator.may_sample.clear()  # Groups of the next step are being sampled when the run is paused.
    # One request waits for the end of the step when the run is paused, the other comes after.
    waiting = asyncio.ensure_future(evaluate(cluster))
    controls = cluster.runs.active("")._controls
    while not controls.evaluation_requests:
        await controls.wait_for_change()
    await cluster.stub.PauseRun(pb.PauseRunRequest(), timeout=60)
    generator.may_sample.set()
    for answer in (await waiting, await evaluate(cluster)):
        assert answer.num_scored == NUM_PROMPTS, answer
        assert answer.version.policy_version == cluster.plane.policy_version, answer
    run = await cluster.run()
    assert (run.state, run.policy_version) == (pb.RUN_STATE_PAUSED, cluster.plane.policy_version)
    num_sampled = len(generator.sampled)
    await cluster.stub.SaveCheckpoint(pb.SaveCheckpointRequest(), timeout=60)
    assert len(generator.sampled) == num_sampled, "a paused run samples"


async def test_a_stop_cancels_the_evaluation_of_a_paused_run(cluster: Cluster, model: Path) -> None:
    generator = ScriptedGenerator(cluster.plane)
    await cluster.add_all(generator)
    await cluster.start(config(model, run={"num_steps": 1000}))
    await cluster.until(lambda event: event.kind == "step")
    await cluster.stub.PauseRun(pb.PauseRunRequest(), timeout=60)
    generator.may_sample.clear()
    asking = asyncio.ensure_future(evaluate(cluster))
    await until_questions_arrive(generator, 1)
    await cluster.stub.StopRun(pb.StopRunRequest(), timeout=60)
    run, events = await cluster.end()
    assert run.state == pb.RUN_STATE_STOPPED and "evaluation" not in kinds(events), run.message
    with pytest.raises(FailedPrecondition, match="canceled: the run is ending"):
        await asking


@pytest.mark.parametrize("ends_by", ["resume", "drain"])
async def test_the_end_of_a_pause_does_not_disturb_its_evaluation(cluster: Cluster, model: Path, ends_by: str) -> None:
    generator = ScriptedGenerator(cluster.plane)
    generator.may_sample.clear()
    await cluster.add_all(generator)
    await cluster.start(config(model, run={"num_steps": 3}))
    await until_training_is_sampled(generator)
    await cluster.stub.PauseRun(pb.PauseRunRequest(), timeout=60)
    asking = asyncio.ensure_future(evaluate(cluster))
    await until_questions_arrive(generator, NUM_PROMPTS)
    if ends_by == "resume":
        await cluster.stub.ResumeRun(pb.ResumeRunRequest(), timeout=60)
    else:
        await cluster.stub.StopRun(pb.StopRunRequest(mode=pb.STOP_MODE_DRAIN), timeout=60)
    generator.may_sample.set()
    answer = await asking
    assert answer.num_scored == NUM_PROMPTS and answer.version.policy_version == 0, answer
    run, _ = await cluster.end()
    expected = pb.RUN_STATE_FINISHED if ends_by == "resume" else pb.RUN_STATE_STOPPED
    assert run.state == expected and run.policy_version >= 1, run.message


async def test_a_request_in_a_pause_also_ends_the_evaluation_that_the_pause_interrupted(
    cluster: Cluster, model: Path
) -> None:
    generator = ScriptedGenerator(cluster.plane)
    generator.may_sample.clear()
    await cluster.add_all(generator)
    await cluster.start(config(model, on_start=True, run={"num_steps": 2}))
    await until_questions_arrive(generator, 1)
    await cluster.stub.PauseRun(pb.PauseRunRequest(), timeout=60)
    generator.may_sample.set()
    answer = await evaluate(cluster)
    assert answer.num_scored == NUM_PROMPTS and (await cluster.run()).state == pb.RUN_STATE_PAUSED, answer
    events = await cluster.until(lambda event: event.kind == "evaluation")
    assert "step" not in kinds(events), kinds(events)
    await cluster.stub.ResumeRun(pb.ResumeRunRequest(), timeout=60)
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message


async def test_a_paused_run_is_evaluated_by_the_generator_that_replaces_a_lost_one(
    cluster: Cluster, model: Path
) -> None:
    victim = ScriptedGenerator(cluster.plane)
    await cluster.add_all()
    server = await cluster.add(worker_pb2.WORKER_KIND_GENERATOR, victim, "victim")
    await cluster.start(config(model, run={"num_steps": 3}))
    await cluster.until(lambda event: event.kind == "step")
    await cluster.stub.PauseRun(pb.PauseRunRequest(), timeout=60)
    victim.may_sample.clear()
    asking = asyncio.ensure_future(evaluate(cluster))
    await until_questions_arrive(victim, 1)
    await cluster.kill(server, "victim")
    heir = ScriptedGenerator(cluster.plane)
    await cluster.add(worker_pb2.WORKER_KIND_GENERATOR, heir, "heir")
    answer = await asking
    assert answer.num_scored == NUM_PROMPTS and (await cluster.run()).state == pb.RUN_STATE_PAUSED, answer
    assert all("/evaluation-" in name for name in heir.sampled), heir.sampled
    await cluster.stub.ResumeRun(pb.ResumeRunRequest(), timeout=60)
    run, _ = await cluster.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
