"""Evaluation during training: when it runs, at which version, and when generators fail."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.store import long_work
from shoal.errors import FailedPrecondition
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import generator_pb2
from tests.support.cluster import Cluster, kinds, of_kind
from tests.support.scripted_workers import ScriptedGenerator, ScriptedReward, arithmetic_config
from tests.support.waiting import eventually

NUM_PROMPTS = 6


def config(model: Path, evaluation: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    questions = {"sources": [{"task": "arithmetic", "task_size": 50, "task_seed": 1}], "num_prompts": NUM_PROMPTS}
    return arithmetic_config(model, evaluation=questions | evaluation, **sections)


def steps_of_evaluations(events: list[pb.RunEvent]) -> list[int]:
    return [int(event.attributes["policy_version"]) for event in events if event.kind == "evaluation"]


def evaluation_requests(*generators: ScriptedGenerator) -> list[generator_pb2.GenerateGroupRequest]:
    return [r for generator in generators for r in generator.requests if "/evaluation-" in r.request_id]


async def until_questions_arrive(generator: ScriptedGenerator, num_questions: int) -> None:
    async with generator.asked, asyncio.timeout(120):
        await generator.asked.wait_for(lambda: len(evaluation_requests(generator)) >= num_questions)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0, 5]),
        ({"on_start": False}, [5]),
        ({"every_steps": 2}, [0, 2, 4, 5]),
        ({"every_steps": 5, "on_start": False}, [5]),
    ],
)
async def test_evaluations_run_at_the_configured_steps(
    cluster: Cluster, model: Path, settings: dict[str, Any], expected: list[int]
) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    _, events = await cluster.run_to_end(config(model, settings))
    assert steps_of_evaluations(events) == expected


@pytest.mark.parametrize(("own", "expected"), [({}, ("</answer>", "!")), ({"stop_strings": ["?"]}, ("?",))])
async def test_an_evaluation_has_the_stop_strings_of_training_unless_it_has_its_own(
    cluster: Cluster, model: Path, own: dict[str, Any], expected: tuple[str, ...]
) -> None:
    generator = ScriptedGenerator(cluster.plane)
    await cluster.add_all(generator)
    await cluster.run_to_end(config(model, own, sampling={"stop_strings": ["</answer>", "!"]}))
    asked = evaluation_requests(generator)
    training = [request for request in generator.requests if request not in asked]
    assert asked and {tuple(request.sampling.stop_strings) for request in asked} == {expected}
    assert {tuple(request.sampling.stop_strings) for request in training} == {("</answer>", "!")}


async def test_each_source_of_questions_has_metrics_under_its_name(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane))
    sources = [
        {"task": "arithmetic", "task_size": 3, "task_seed": 1, "name": "easy"},
        {"task": "arithmetic", "task_size": 5, "task_seed": 2, "name": "hard sums"},
    ]
    settings = {
        "sources": sources, "num_prompts": 8, "samples_per_prompt": 4, "temperature": 1.0, "pass_at_k": [1, 3],
        "on_start": False,
    }  # fmt: skip
    run, events = await cluster.run_to_end(config(model, settings, run={"num_steps": 1}))
    rows = cluster.metrics(run.run_id)
    (row,) = [row for row in rows if "eval/num_prompts" in row]
    assert {name for name in row if "pass_at" in name} == {
        "eval/pass_at_1", "eval/pass_at_1_low", "eval/pass_at_1_high",
        "eval/pass_at_3", "eval/pass_at_3_low", "eval/pass_at_3_high",
        *(f"eval/source/{name}/pass_at_{k}" for name in ("easy", "hard sums") for k in (1, 3)),
    }  # fmt: skip
    assert row["eval/pass_at_3_low"] <= row["eval/pass_at_3"] <= row["eval/pass_at_3_high"], row
    for name in ("scores", "correct_rate", "pass_at_3"):
        total = {"scores": "eval/scores", "correct_rate": "eval/verifiable_correct_rate", "pass_at_3": "eval/pass_at_3"}
        mixed = (3 * row[f"eval/source/easy/{name}"] + 5 * row[f"eval/source/hard sums/{name}"]) / 8
        assert row[total[name]] == pytest.approx(mixed), (name, row)
    (evaluated,) = of_kind(events, "evaluation")
    assert "pass@3" in evaluated.message and "hard sums" in evaluated.message, evaluated.message


async def test_all_answers_are_of_the_version_that_the_result_names(cluster: Cluster, model: Path) -> None:
    generators = [ScriptedGenerator(cluster.plane, delay_s=0.05), ScriptedGenerator(cluster.plane, delay_s=0.01)]
    await cluster.add_all(*generators)
    settings = {"every_steps": 1, "samples_per_prompt": 4, "temperature": 0.7}
    run, events = await cluster.run_to_end(config(model, settings, grpo={"max_staleness": 2}, run={"num_steps": 6}))
    assert steps_of_evaluations(events) == list(range(7))
    # A question with an answer of another version would have been sampled again.
    assert len(evaluation_requests(*generators)) == 7 * NUM_PROMPTS
    rows = cluster.metrics(run.run_id)
    evaluated = [row for row in rows if "eval/num_prompts" in row]
    assert [row["step"] for row in evaluated] == list(range(7))
    for row in evaluated:
        assert row["eval/num_completions"] == 4 * NUM_PROMPTS and row["eval/unscored_rate"] == 0
        assert row["eval/pass_at_1"] <= row["eval/pass_at_2"] <= row["eval/pass_at_4"], row
        assert row["eval/pass_at_1"] == pytest.approx(row["eval/verifiable_correct_rate"])
        assert row["eval/source/arithmetic@1/correct_rate"] == row["eval/verifiable_correct_rate"]
        assert row["eval/verifier/gsm8k/correct_rate"] == row["eval/verifiable_correct_rate"]
        low, high = row["eval/verifiable_correct_rate_low"], row["eval/verifiable_correct_rate_high"]
        assert 0 <= low <= row["eval/verifiable_correct_rate"] <= high <= 1, row
    first = evaluated[0]["eval/verifiable_correct_rate"]
    for row, event in zip(evaluated[1:], of_kind(events, "evaluation")[1:], strict=True):
        change = row["eval/correct_rate_change"]
        assert change == pytest.approx(row["eval/verifiable_correct_rate"] - first)
        assert row["eval/correct_rate_change_low"] <= change <= row["eval/correct_rate_change_high"], row
        assert event.attributes["change"]["num_questions"] == NUM_PROMPTS and "since step 0:" in event.message


async def test_waiting_evaluating_and_slow_steps_say_how_far_they_are(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_work, "FIRST_AFTER_S", 0.01)
    monkeypatch.setattr(long_work, "SLOW_STEP_S", 0.01)
    monkeypatch.setattr(long_work, "EVERY_S", 0.05)
    cluster.learner.step_s = 0.1
    generator = ScriptedGenerator(cluster.plane, delay_s=0.02)
    await cluster.start(config(model, {"on_start": True}, run={"num_steps": 1}))
    events = await cluster.until("progress")
    assert "no generator" in events[-1].message, events[-1].message
    await cluster.add_all(generator)
    _, events = await cluster.end()
    shown = [event for event in events if event.kind == "progress" and "evaluating" in event.message]
    assert shown and all(f"of {NUM_PROMPTS} questions" in event.message for event in shown), kinds(events)
    assert shown[0].attributes["work"].endswith(" of step 0"), shown[0]
    works = {event.attributes["work"]: event.attributes["state"] for event in events if event.kind == "progress"}
    assert any("groups of step 1" in work for work in works) and any("training on" in work for work in works), works


async def test_an_evaluation_samples_with_its_own_settings_and_seeds(cluster: Cluster, model: Path) -> None:
    generator = ScriptedGenerator(cluster.plane)
    await cluster.add_all(generator)
    settings = {
        "samples_per_prompt": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.25,
        "max_completion_tokens": 9,
    }
    await cluster.start(config(model, settings, run={"num_steps": 2}))
    await cluster.end()
    asked = evaluation_requests(generator)
    training = {seed for r in generator.requests if r not in asked for seed in r.seeds}
    for request in asked:
        sampling = request.sampling
        got = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.max_completion_tokens)
        assert got == (0.5, 0.9, 7, 0.25, 9)
        assert len(request.seeds) == 2 and not training & set(request.seeds), request.seeds
    first, last = asked[:NUM_PROMPTS], asked[NUM_PROMPTS:]
    assert [list(r.seeds) for r in first] == [list(r.seeds) for r in last], "the seeds differ between policies"


async def test_evaluations_do_not_change_what_is_trained_on(model: Path, tmp_path: Path) -> None:
    async def trained_on(evaluation: dict[str, Any]) -> list[tuple[int, str, list[int]]]:
        async with Cluster.running(tmp_path / f"runs-{len(evaluation)}") as beside:
            await beside.add_all(ScriptedGenerator(beside.plane))
            sections = {"run": {"num_steps": 4}, "grpo": {"max_staleness": 0}}
            await beside.start(
                config(model, evaluation, **sections) if evaluation else arithmetic_config(model, **sections)
            )
            await beside.end()
            return [
                (group.order_number, group.prompt_id, [rollout.num_tokens for rollout in group.rollouts])
                for group in await beside.groups()
            ]

    with_evaluations, without = await trained_on({"every_steps": 1}), await trained_on({})
    assert with_evaluations == without


async def test_an_evaluation_survives_the_loss_of_the_only_generator(cluster: Cluster, model: Path) -> None:
    victim = ScriptedGenerator(cluster.plane, delay_s=30.0)
    await cluster.add_all()
    await cluster.add(victim, "victim")
    await cluster.start(config(model, {}, run={"num_steps": 2}))
    await until_questions_arrive(victim, NUM_PROMPTS)
    await cluster.kill("victim")
    heir = ScriptedGenerator(cluster.plane)
    await cluster.add(heir, "heir")
    _, events = await cluster.finish()
    assert steps_of_evaluations(events) == [0, 2]
    assert len(evaluation_requests(heir)) == 2 * NUM_PROMPTS
    scored = [event.attributes["num_scored"] for event in events if event.kind == "evaluation"]
    assert scored == [NUM_PROMPTS, NUM_PROMPTS], scored


async def test_training_waits_for_answers_but_not_for_their_scores(cluster: Cluster, model: Path) -> None:
    generator, reward = ScriptedGenerator(cluster.plane, delay_s=0.15), ScriptedReward()
    await cluster.add_all(generator, rewards=(reward,))
    reward.held_source = "arithmetic@1"
    reward.may_score.clear()
    sections = {"grpo": {"max_staleness": 0}, "run": {"num_steps": 2}}
    await cluster.start(config(model, {"samples_per_prompt": 2, "temperature": 1.0}, **sections))
    events = await cluster.until("step")
    assert "evaluation" not in kinds(events), "the step waited for scores"
    reward.may_score.set()
    _, events = await cluster.finish()
    assert steps_of_evaluations(events) == [0, 2], kinds(events)


async def test_checkpoints_and_pauses_are_answered_during_an_evaluation(cluster: Cluster, model: Path) -> None:
    generator = ScriptedGenerator(cluster.plane, delay_s=0.4)
    await cluster.add_all(generator)
    await cluster.start(config(model, {}, run={"num_steps": 1}))
    await until_questions_arrive(generator, 1)
    await cluster.pause()
    saved = await cluster.save_checkpoint()
    assert saved.policy_version == 0
    await cluster.resume()
    _, events = await cluster.finish()
    assert steps_of_evaluations(events) == [0, 1], kinds(events)


async def test_a_stop_does_not_wait_for_an_evaluation(cluster: Cluster, model: Path) -> None:
    generator = ScriptedGenerator(cluster.plane, delay_s=36_000.0)
    await cluster.add_all(generator)
    await cluster.start(config(model, {}))
    await until_questions_arrive(generator, 1)
    asking = asyncio.ensure_future(cluster.evaluate())
    controls = cluster.runs.active("").parts.controls
    await eventually(lambda: controls.evaluation_requests, "the request has arrived")
    await cluster.stop()
    run, events = await cluster.end()
    assert run.state == pb.RUN_STATE_STOPPED and not steps_of_evaluations(events), run.message
    with pytest.raises(FailedPrecondition, match="ended"):
        await asking


async def test_an_evaluation_can_be_requested_at_any_time(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.05))
    await cluster.start(config(model, {"on_start": False}, run={"num_steps": 1000}))
    await cluster.until("step", step=2)
    answers = await asyncio.gather(*(cluster.evaluate() for _ in range(2)))
    for answer in answers:
        assert answer.version.policy_version >= 2 and answer.num_prompts == NUM_PROMPTS == answer.num_scored, answer
        assert 0 <= answer.metrics["eval/pass_at_1"] <= 1
    events = await cluster.until("evaluation")
    assert events[-1].attributes["correct_rate"] == answers[0].metrics["eval/verifiable_correct_rate"]
    assert answers[0].metrics["eval/num_completions"] == NUM_PROMPTS


async def test_a_run_without_questions_refuses_to_evaluate(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.05))
    await cluster.start(arithmetic_config(model, run={"num_steps": 1000}))
    with pytest.raises(FailedPrecondition, match=r"evaluation\.sources"):
        await cluster.evaluate()


async def test_a_resumed_run_repeats_no_evaluation_and_misses_none(cluster: Cluster, model: Path) -> None:
    await cluster.add_all(ScriptedGenerator(cluster.plane, delay_s=0.02))
    settings = {"every_steps": 2}
    await cluster.start(config(model, settings, run={"num_steps": 6}, checkpoint={"every_steps": 2}), run_id="again")
    await cluster.until("step", step=3)
    await cluster.stop()
    await cluster.end()
    _, events = await cluster.run_to_end({}, run_id="again", resume=True)
    assert steps_of_evaluations(events) == [0, 2, 4, 6], kinds(events)
    await cluster.check_every_group_was_used_once(6)
    rows = cluster.metrics("again")
    assert [row["step"] for row in rows if "eval/num_prompts" in row] == [0, 2, 4, 6]
    assert [row["step"] for row in rows if "eval/num_prompts" not in row] == [1, 2, 3, 4, 5, 6]
