"""Evaluation of a paused run: it stays paused, and samples nothing for training meanwhile."""

import asyncio
from pathlib import Path

import pytest

from shoal.errors import FailedPrecondition
from shoal.v1 import coordinator_pb2 as pb
from tests.contract.runs.test_evaluation import NUM_PROMPTS, config, until_questions_arrive
from tests.support.cluster import Cluster, kinds
from tests.support.scripted_workers import ScriptedGenerator

LATER = {"on_start": False}


async def until_training_is_sampled(generator: ScriptedGenerator) -> None:
    async with generator.asked, asyncio.timeout(120):
        await generator.asked.wait_for(lambda: bool(generator.requests))


async def test_a_paused_run_is_evaluated_again_and_again_and_samples_nothing_for_training(
    cluster: Cluster, model: Path
) -> None:
    generators = [ScriptedGenerator(cluster.plane, delay_s=0.05) for _ in range(2)]
    await cluster.add_all(*generators)
    await cluster.start(config(model, LATER, run={"num_steps": 6}))
    await cluster.until("step", step=2)
    await cluster.pause()
    await cluster.evaluate()  # A publish that was under way lets the generators sample until it ends.
    paused_at = [len(generator.sampled) for generator in generators]
    for _ in range(2):
        answer = await cluster.evaluate()
        run = await cluster.run()
        assert run.state == pb.RUN_STATE_PAUSED and answer.version.policy_version == run.policy_version >= 2, run
        assert answer.num_scored == NUM_PROMPTS and 0 < answer.metrics["time/evaluating"] < 60, answer.metrics
        assert answer.metrics["eval/actor_tokens_per_second"] < 1e6, answer.metrics
    in_pause = [name for generator, n in zip(generators, paused_at, strict=True) for name in generator.sampled[n:]]
    assert len(in_pause) == 2 * NUM_PROMPTS, in_pause
    assert all("/evaluation-" in name for name in in_pause), in_pause
    await cluster.resume()
    run, events = await cluster.finish()
    assert "group_reissued" not in kinds(events), kinds(events)
    trained = [group.order_number for group in await cluster.groups() if group.state == "TRAINED"]
    assert len(trained) == len(set(trained)), trained
    rows = cluster.metrics(run.run_id)
    assert [row["step"] for row in rows if "eval/num_prompts" not in row] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("inflight_updates", [True, False])
async def test_a_run_that_is_paused_in_a_step_publishes_it_to_be_evaluated(
    cluster: Cluster, model: Path, inflight_updates: bool
) -> None:
    cluster.learner.step_s = 0.5
    generator = ScriptedGenerator(cluster.plane)
    await cluster.add_all(generator)
    weights = {"inflight_updates": inflight_updates}
    await cluster.start(config(model, LATER, run={"num_steps": 1000}, weights=weights))
    await cluster.until("step")
    await cluster.learner.stepping.wait()
    generator.may_sample.clear()  # Groups of the next step are being sampled when the run is paused.
    # One request waits for the end of the step when the run is paused, the other comes after.
    waiting = asyncio.ensure_future(cluster.evaluate())
    controls = cluster.runs.active("").parts.controls
    while not controls.evaluation_requests:
        await controls.changed.wait()
    await cluster.pause()
    generator.may_sample.set()
    for answer in (await waiting, await cluster.evaluate()):
        assert answer.num_scored == NUM_PROMPTS, answer
        assert answer.version.policy_version == cluster.plane.policy_version, answer
    run = await cluster.run()
    assert (run.state, run.policy_version) == (pb.RUN_STATE_PAUSED, cluster.plane.policy_version)
    num_sampled = len(generator.sampled)
    await cluster.save_checkpoint()
    assert len(generator.sampled) == num_sampled, "a paused run samples"


async def test_a_stop_cancels_the_evaluation_of_a_paused_run(cluster: Cluster, model: Path) -> None:
    generator = ScriptedGenerator(cluster.plane)
    await cluster.add_all(generator)
    await cluster.start(config(model, LATER, run={"num_steps": 1000}))
    await cluster.until("step")
    await cluster.pause()
    generator.may_sample.clear()
    asking = asyncio.ensure_future(cluster.evaluate())
    await until_questions_arrive(generator, 1)
    await cluster.stop()
    run, events = await cluster.end()
    assert run.state == pb.RUN_STATE_STOPPED and "evaluation" not in kinds(events), run.message
    with pytest.raises(FailedPrecondition, match="canceled"):
        await asking


@pytest.mark.parametrize("ends_by", ["resume", "drain"])
async def test_the_end_of_a_pause_does_not_disturb_its_evaluation(cluster: Cluster, model: Path, ends_by: str) -> None:
    generator = ScriptedGenerator(cluster.plane)
    generator.may_sample.clear()
    await cluster.add_all(generator)
    await cluster.start(config(model, LATER, run={"num_steps": 3}))
    await until_training_is_sampled(generator)
    await cluster.pause()
    asking = asyncio.ensure_future(cluster.evaluate())
    await until_questions_arrive(generator, NUM_PROMPTS)
    if ends_by == "resume":
        await cluster.resume()
    else:
        await cluster.stop(pb.STOP_MODE_DRAIN)
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
    await cluster.start(config(model, {}, run={"num_steps": 2}))
    await until_questions_arrive(generator, 1)
    await cluster.pause()
    generator.may_sample.set()
    answer = await cluster.evaluate()
    assert answer.num_scored == NUM_PROMPTS and (await cluster.run()).state == pb.RUN_STATE_PAUSED, answer
    events = await cluster.until("evaluation")
    assert "step" not in kinds(events), kinds(events)
    await cluster.resume()
    await cluster.finish()


async def test_a_paused_run_is_evaluated_by_the_generator_that_replaces_a_lost_one(
    cluster: Cluster, model: Path
) -> None:
    victim = ScriptedGenerator(cluster.plane)
    await cluster.add_all()
    await cluster.add(victim, "victim")
    await cluster.start(config(model, LATER, run={"num_steps": 3}))
    await cluster.until("step")
    await cluster.pause()
    victim.may_sample.clear()
    asking = asyncio.ensure_future(cluster.evaluate())
    await until_questions_arrive(victim, 1)
    await cluster.kill("victim")
    heir = ScriptedGenerator(cluster.plane)
    await cluster.add(heir, "heir")
    answer = await asking
    assert answer.num_scored == NUM_PROMPTS and (await cluster.run()).state == pb.RUN_STATE_PAUSED, answer
    assert all("/evaluation-" in name for name in heir.sampled), heir.sampled
    await cluster.resume()
    await cluster.finish()
