"""A deterministic run that is killed three times ends as one that nobody touched, bit for bit."""

import statistics
from pathlib import Path

import pytest

from tests.support.local_stack import LocalStack, guessing_config, write_config, write_guessing_game
from tests.support.same_runs import completions_of, differences, events_of, metrics_of, rows_of, weights_of

NUM_STEPS = 9
WAIT_S = 1500
ANSWERS = {"every_steps": 4, "samples_per_prompt": 2, "temperature": 1.0}
KILLS = ((2, "learner"), (4, "coordinator"), (7, "generator"))
"""Steps after which a process is killed, with its kind."""


def config_of(folder: Path, *, deterministic: bool) -> Path:
    questions = write_guessing_game(folder / "questions.jsonl", 12)
    config = guessing_config(
        folder,
        run={"num_steps": NUM_STEPS, "deterministic": deterministic, "num_threads": 1, "seed": 3},
        sampling={"max_completion_tokens": 24},
        grpo={"group_size": 6, "groups_per_step": 6, "active_sampling": True, "max_refills": 1},
        kl={"coef": 0.02, "reference_update_steps": 2, "reference_alpha": 0.5},
        learner={"lr_scheduler": "linear", "warmup_steps": 2},
        evaluation={"sources": [{"path": str(questions)}], "held_out": False, "num_prompts": 12} | ANSWERS,
        checkpoint={"every_steps": 3},
        coordinator={"max_group_losses": 10, "worker_timeout_s": 900},
        launch={"num_learner_ranks": 2, "num_generators": 2},
    )
    return write_config(folder / f"{'deterministic' if deterministic else 'usual'}.toml", config)


def train(folder: Path, config: Path, name: str, kills: tuple[tuple[int, str], ...] = ()) -> Path:
    stack = LocalStack(folder / "runs", name, str(config), "--name", name)
    try:
        for step, kind in kills:
            stack.until_step(step, WAIT_S)
            (victim, *_) = stack.children(f"services.{kind}", "--listen")
            victim.kill()
        code = stack.wait(WAIT_S)
        assert code == 0, stack.tail()
    finally:
        stack.end()
    return stack.folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deterministic")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """A run that nobody touches."""
    return train(folder, config_of(folder, deterministic=True), "whole")


@pytest.mark.timeout(4 * WAIT_S)
def test_a_run_that_is_killed_at_three_steps_equals_one_that_is_not(folder: Path, whole: Path) -> None:
    killed = train(folder, config_of(folder, deterministic=True), "killed", KILLS)
    kinds = events_of(killed)
    assert kinds.count("restarting") == 2, "the learner and the coordinator begin an attempt each"
    assert kinds.count("worker_lost") >= 2, "the learner and a generator are lost"
    assert len(weights_of(whole)) > 10 and len(metrics_of(whole)) >= NUM_STEPS and completions_of(whole)
    found = differences(whole, killed)
    assert not found, f"{len(found)} differences, among them {found[:10]}"


@pytest.mark.timeout(4 * WAIT_S)
def test_the_same_run_without_its_order_is_another_one(folder: Path, whole: Path) -> None:
    """The comparison above can fail: without batches, completions begin when they arrive."""
    usual = train(folder, config_of(folder, deterministic=False), "usual")
    for name, run in (("deterministic", whole), ("usual", usual)):
        rows = [row for row in rows_of(run) if "time/step" in row][1:]
        waits = statistics.median(row["time/waiting_for_groups"] for row in rows)
        rate = sum(row["val/num_step_tokens"] for row in rows) / sum(row["time/waiting_for_groups"] for row in rows)
        print(f"{name}: {rate:.0f} tokens/s sampled and scored, {waits:.2f} s a step")
    found = differences(whole, usual)
    print(f"{len(found)} differences, the first are {found[:3]}")
    assert found, "two runs that sampled other batches are equal"
