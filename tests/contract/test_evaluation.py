"""Evaluation in the loop: when, at which version, beside training, whatever happens to generators."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import FailedPrecondition
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import generator_pb2, worker_pb2
from tests.house import House, kinds
from tests.scripted import ScriptedGenerator, ScriptedReward, arithmetic_config

NUM_PROMPTS = 6


def config(model: Path, evaluation: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    """A run with held-out questions."""
    questions = {"sources": [{"task": "arithmetic", "task_size": 50, "task_seed": 1}], "num_prompts": NUM_PROMPTS}
    return arithmetic_config(model, evaluation=questions | evaluation, **sections)


def steps_of_evaluations(events: list[pb.RunEvent]) -> list[int]:
    return [int(event.attributes["policy_version"]) for event in events if event.kind == "evaluation"]


def asked_to_evaluate(*generators: ScriptedGenerator) -> list[generator_pb2.GenerateGroupRequest]:
    return [r for generator in generators for r in generator.requests if "/evaluation-" in r.request_id]


async def until_asked(generator: ScriptedGenerator, num_questions: int) -> None:
    """Returns once a generator samples answers to so many held-out questions."""
    async with generator.asked, asyncio.timeout(30):
        await generator.asked.wait_for(lambda: len(asked_to_evaluate(generator)) >= num_questions)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0, 5]),
        ({"on_start": False}, [5]),
        ({"every_steps": 2}, [0, 2, 4, 5]),
        ({"every_steps": 5, "on_start": False}, [5]),
    ],
)
async def test_evaluations_happen_when_the_configuration_says(
    house: House, model: Path, settings: dict[str, Any], expected: list[int]
) -> None:
    await house.add_all(ScriptedGenerator(house.plane))
    await house.start(config(model, settings))
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    assert steps_of_evaluations(events) == expected


async def test_training_and_evaluation_stop_at_the_same_texts(house: House, model: Path) -> None:
    generator = ScriptedGenerator(house.plane)
    await house.add_all(generator)
    await house.start(config(model, {}, sampling={"stop_strings": ["</answer>", "!"]}))
    run, _ = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    asked = asked_to_evaluate(generator)
    assert 0 < len(asked) < len(generator.requests)
    assert {tuple(request.sampling.stop_strings) for request in generator.requests} == {("</answer>", "!")}


async def test_all_answers_are_of_the_version_that_the_result_names(house: House, model: Path) -> None:
    generators = [ScriptedGenerator(house.plane, delay_s=0.1), ScriptedGenerator(house.plane, delay_s=0.02)]
    await house.add_all(*generators)
    settings = {"every_steps": 1, "samples_per_prompt": 4, "temperature": 0.7}
    await house.start(config(model, settings, grpo={"max_staleness": 2}, run={"num_steps": 6}))
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    assert steps_of_evaluations(events) == list(range(7))
    # A question whose answer was of another version would have been asked again.
    assert len(asked_to_evaluate(*generators)) == 7 * NUM_PROMPTS
    rows = [json.loads(line) for line in (house.data_dir / run.run_id / "metrics.jsonl").read_text().splitlines()]
    evaluated = [row for row in rows if "eval/num_prompts" in row]
    assert [row["step"] for row in evaluated] == list(range(7))
    for row in evaluated:
        assert row["eval/num_completions"] == 4 * NUM_PROMPTS and row["eval/unscored_rate"] == 0
        assert row["eval/pass_at_1"] <= row["eval/pass_at_2"] <= row["eval/pass_at_4"], row
        assert row["eval/pass_at_1"] == pytest.approx(row["eval/verifiable_correct_rate"])
        assert row["eval/source/arithmetic@1/correct_rate"] == row["eval/verifiable_correct_rate"]
        assert row["eval/verifier/gsm8k/correct_rate"] == row["eval/verifiable_correct_rate"]


async def test_an_evaluation_samples_with_its_own_settings_and_seeds(house: House, model: Path) -> None:
    generator = ScriptedGenerator(house.plane)
    await house.add_all(generator)
    settings = {
        "samples_per_prompt": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.25,
        "max_completion_tokens": 9,
    }
    await house.start(config(model, settings, run={"num_steps": 2}))
    await house.end()
    asked = asked_to_evaluate(generator)
    training = {seed for r in generator.requests if r not in asked for seed in r.seeds}
    for request in asked:
        sampling = request.sampling
        got = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.max_completion_tokens)
        assert got == (0.5, 0.9, 7, 0.25, 9)
        assert len(request.seeds) == 2 and not training & set(request.seeds), request.seeds
    first, last = asked[:NUM_PROMPTS], asked[NUM_PROMPTS:]
    assert [list(r.seeds) for r in first] == [list(r.seeds) for r in last], "policies are compared with other draws"


async def test_what_is_trained_on_is_the_same_with_and_without_evaluations(
    house: House, model: Path, tmp_path: Path
) -> None:
    async def trained_on(evaluation: dict[str, Any]) -> list[tuple[int, str, list[int]]]:
        generator = ScriptedGenerator(house.plane)
        beside = House(tmp_path / f"runs-{len(evaluation)}")
        beside.data_dir.mkdir()
        generator.plane = beside.plane
        await beside.open()
        try:
            await beside.add_all(generator)
            sections = {"run": {"num_steps": 4}, "grpo": {"max_staleness": 0}}
            await beside.start(
                config(model, evaluation, **sections) if evaluation else arithmetic_config(model, **sections)
            )
            await beside.end()
            return [
                (group.order_number, group.prompt_id, [rollout.num_tokens for rollout in group.rollouts])
                for group in await beside.groups()
            ]
        finally:
            await beside.close()

    with_evaluations, without = await trained_on({"every_steps": 1}), await trained_on({})
    assert with_evaluations == without


async def test_an_evaluation_survives_the_loss_of_the_only_generator(house: House, model: Path) -> None:
    victim = ScriptedGenerator(house.plane, delay_s=30.0)
    await house.add_all()
    server = await house.add(worker_pb2.WORKER_KIND_GENERATOR, victim, "victim")
    await house.start(config(model, {}, run={"num_steps": 2}))
    await until_asked(victim, NUM_PROMPTS)
    await house.kill(server, "victim")
    heir = ScriptedGenerator(house.plane)
    await house.add(worker_pb2.WORKER_KIND_GENERATOR, heir, "heir")
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    assert steps_of_evaluations(events) == [0, 2]
    assert len(asked_to_evaluate(heir)) == 2 * NUM_PROMPTS
    scored = [event.attributes["num_scored"] for event in events if event.kind == "evaluation"]
    assert scored == [NUM_PROMPTS, NUM_PROMPTS], scored


async def test_training_waits_for_answers_and_not_for_their_scores(house: House, model: Path) -> None:
    generator, reward = ScriptedGenerator(house.plane, delay_s=0.3), ScriptedReward()
    await house.add_all(generator, rewards=(reward,))
    reward.held_source = "arithmetic@1"
    reward.may_score.clear()
    sections = {"grpo": {"max_staleness": 0}, "run": {"num_steps": 2}}
    await house.start(config(model, {"samples_per_prompt": 2, "temperature": 1.0}, **sections))
    events = await house.until(lambda event: event.kind == "step")
    assert "evaluation" not in kinds(events), "the step waited for scores"
    reward.may_score.set()
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED and steps_of_evaluations(events) == [0, 2], run.message


async def test_checkpoints_and_pauses_are_answered_while_questions_are(house: House, model: Path) -> None:
    generator = ScriptedGenerator(house.plane, delay_s=0.8)
    await house.add_all(generator)
    await house.start(config(model, {}, run={"num_steps": 1}))
    await until_asked(generator, 1)
    await house.stub.PauseRun(pb.PauseRunRequest(), timeout=10)
    saved = await house.stub.SaveCheckpoint(pb.SaveCheckpointRequest(), timeout=10)
    assert saved.policy_version == 0
    await house.stub.ResumeRun(pb.ResumeRunRequest(), timeout=10)
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED and steps_of_evaluations(events) == [0, 1], run.message


async def test_a_stop_does_not_wait_for_an_evaluation(house: House, model: Path) -> None:
    generator = ScriptedGenerator(house.plane, delay_s=60.0)
    await house.add_all(generator)
    await house.start(config(model, {}))
    await until_asked(generator, 1)
    asking = asyncio.ensure_future(house.stub.Evaluate(pb.EvaluateRequest(), timeout=30))
    await asyncio.sleep(0.2)
    await house.stub.StopRun(pb.StopRunRequest(), timeout=10)
    run, events = await house.end(timeout_s=10)
    assert run.state == pb.RUN_STATE_STOPPED and not steps_of_evaluations(events), run.message
    with pytest.raises(FailedPrecondition, match="ended"):
        await asking


async def test_an_evaluation_can_be_asked_for_at_any_time(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.05))
    await house.start(config(model, {"on_start": False}, run={"num_steps": 1000}))
    await house.until(lambda event: event.kind == "step" and event.attributes["step"] == 2)
    answers = await asyncio.gather(
        *(house.stub.Evaluate(pb.EvaluateRequest(), timeout=30) for _ in range(2)),
    )
    for answer in answers:
        assert answer.version.policy_version >= 2 and answer.num_prompts == NUM_PROMPTS == answer.num_scored, answer
        assert 0 <= answer.metrics["eval/pass_at_1"] <= 1
    events = await house.until(lambda event: event.kind == "evaluation")
    assert events[-1].attributes["correct_rate"] == answers[0].metrics["eval/verifiable_correct_rate"]
    assert answers[0].metrics["eval/num_completions"] == NUM_PROMPTS


async def test_a_run_without_questions_refuses_to_evaluate(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.05))
    await house.start(arithmetic_config(model, run={"num_steps": 1000}))
    with pytest.raises(FailedPrecondition, match=r"evaluation\.sources"):
        await house.stub.Evaluate(pb.EvaluateRequest(), timeout=10)


async def test_a_resumed_run_repeats_no_evaluation_and_misses_none(house: House, model: Path) -> None:
    await house.add_all(ScriptedGenerator(house.plane, delay_s=0.02))
    settings = {"every_steps": 2}
    await house.start(config(model, settings, run={"num_steps": 6}, checkpoint={"every_steps": 2}), run_id="again")
    await house.until(lambda event: event.kind == "step" and event.attributes["step"] == 3)
    await house.stub.StopRun(pb.StopRunRequest(), timeout=10)
    await house.end()
    await house.start({}, run_id="again", resume=True)
    run, events = await house.end()
    assert run.state == pb.RUN_STATE_FINISHED, run.message
    assert steps_of_evaluations(events) == [0, 2, 4, 6], kinds(events)
    rows = [json.loads(line) for line in (house.data_dir / "again" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "eval/num_prompts" in row] == [0, 2, 4, 6]
    assert [row["step"] for row in rows if "eval/num_prompts" not in row] == [1, 2, 3, 4, 5, 6]
