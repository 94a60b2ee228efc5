"""A deterministic run that is killed several times ends as one that nobody touched, bit for bit."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.client import coordinator
from shoal.v1 import coordinator_pb2 as pb
from tests.support.configs import extended
from tests.support.local_stack import LocalStack, guessing_config, write_config, write_guessing_game
from tests.support.same_runs import completions_of, differences, events_of, metrics_of, rows_of, weights_of
from tests.support.tiny_model import make_tiny_model

NUM_STEPS = 9
WAIT_S = 1500
ANSWERS = {"every_steps": 4, "samples_per_prompt": 2, "temperature": 1.0}
Happenings = tuple[tuple[int, str], ...]
"""Steps after which a process is killed, with its kind, or "update" for a change of the configuration."""
KILLS = ((2, "learner"), (4, "coordinator"), (7, "generator"))
FOLLOWS = {"reference_update_steps": 2, "reference_alpha": 0.5}
"""Lets the reference follow the policy."""


def config_of(folder: Path, name: str = "config", *, deterministic: bool = True, **changes: Any) -> Path:
    questions = write_guessing_game(folder / "questions.jsonl", 12)
    sections = {
        "run": {"num_steps": NUM_STEPS, "deterministic": deterministic, "num_threads": 2, "seed": 3},
        # Long enough that two threads share the attention of a sequence, and otherwise with other sequences beside it.
        "sampling": {"max_completion_tokens": 120},
        "grpo": {"group_size": 6, "groups_per_step": 6, "active_sampling": True, "max_refills": 1},
        "kl": {"coef": 0.02},
        "learner": {"lr_scheduler": "linear", "warmup_steps": 2},
        "evaluation": {"sources": [{"path": str(questions)}], "held_out": False, "num_prompts": 12} | ANSWERS,
        "checkpoint": {"every_steps": 3},
        "coordinator": {"max_group_losses": 10, "worker_timeout_s": 900},
        "launch": {"num_learner_ranks": 2, "num_generators": 2},
    }
    return write_config(folder / f"{name}.toml", guessing_config(folder, **extended(sections, changes)))


def train(folder: Path, config: Path, name: str, happenings: Happenings = ()) -> Path:
    with LocalStack(folder / "runs", name, str(config)) as stack:
        for step, what in happenings:
            stack.until_step(step, WAIT_S)
            if what == "update":
                asyncio.run(update(stack.coordinator_address()))
            else:
                (victim, *_) = stack.children(f"services.{what}", "--listen")
                victim.kill()
        code = stack.wait(WAIT_S)
        assert code == 0, stack.tail()
    return stack.folder


async def update(address: str) -> None:
    request = pb.UpdateRunConfigRequest()
    request.config.update({"learner": {"learning_rate": 3e-4}})
    async with coordinator(address) as stub:
        await stub.UpdateRunConfig(request, timeout=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deterministic")
    make_tiny_model(folder / "model", heads=8)
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    return train(folder, config_of(folder, kl=FOLLOWS), "whole")


def assert_equal(whole: Path, killed: Path, num_steps: int) -> None:
    assert len(weights_of(whole)) > 10 and len(metrics_of(whole)) >= num_steps and completions_of(whole)
    found = differences(whole, killed)
    assert not found, f"{len(found)} differences, among them {found[:10]}"


@pytest.mark.timeout(4 * WAIT_S)
def test_a_run_that_is_killed_at_three_steps_equals_one_that_is_not(folder: Path, whole: Path) -> None:
    killed = train(folder, config_of(folder, kl=FOLLOWS), "killed", KILLS)
    kinds = [event["kind"] for event in events_of(killed)]
    assert kinds.count("restarting") == 2, "the learner and the coordinator begin an attempt each"
    assert kinds.count("worker_lost") >= 2, "the learner and a generator are lost"
    assert_equal(whole, killed, NUM_STEPS)


@pytest.mark.timeout(4 * WAIT_S)
def test_a_run_with_a_sharded_model_that_is_killed_equals_one_that_is_not(folder: Path) -> None:
    config = config_of(folder, "sharded", run={"num_steps": 6}, learner={"zero_stage": 3}, kl=FOLLOWS)
    whole = train(folder, config, "sharded")
    killed = train(folder, config, "sharded-killed", ((2, "generator"), (4, "learner")))
    assert_equal(whole, killed, 6)


def changed_at_step(run: Path) -> int:
    (applied,) = (event for event in events_of(run) if event["kind"] == "config_applied")
    return applied["attributes"]["policy_version"]


@pytest.mark.timeout(4 * WAIT_S)
def test_a_run_with_adapters_that_is_changed_and_killed_equals_one_that_is_changed(folder: Path) -> None:
    config = config_of(
        folder,
        "adapters",
        run={"num_steps": 6, "num_threads": 1},
        learner={"learning_rate": 1e-2, "lora": {"rank": 4, "dropout": 0.1}},
        # Steps of seconds, so that the change comes to both in the same one.
        sampling={"stop_strings": ["e", "a", "0"]},
        evaluation={"every_steps": 2},
        checkpoint={"every_steps": 5},
    )
    whole = train(folder, config, "adapters", ((1, "update"),))
    killed = train(folder, config, "adapters-killed", ((1, "update"), (4, "coordinator")))
    changed_at = [changed_at_step(run) for run in (whole, killed)]
    assert changed_at[0] == changed_at[1], f"the change came at steps {changed_at}, so these are two runs: try again"
    assert_equal(whole, killed, 6)


GAME = '''
from shoal.environment import Environment, Observation


class Chatter(Environment):
    """Talks for 2 to 4 turns, and pays for digits."""

    is_deterministic = True

    def reset(self, task, seed):
        self.num_turns = 2 + seed % 3

    def step(self, turn):
        digits = sum(letter.isdigit() for letter in turn.text)
        return Observation(f"{turn.number}: {digits}", reward=digits / 8, done=turn.number == self.num_turns)
'''


@pytest.mark.timeout(4 * WAIT_S)
def test_a_run_of_episodes_that_is_killed_equals_one_that_is_not(folder: Path) -> None:
    game, rows = folder / "game.py", folder / "games.jsonl"
    game.write_text(GAME)
    rows.write_text("".join(json.dumps({"messages": f"Say digits, {number}"}) + "\n" for number in range(64)))
    source = {"path": str(rows), "environment": "chatter"}
    config = config_of(
        folder,
        "episodes",
        run={"num_steps": 4},
        data={"sources": [source], "max_prompt_tokens": 100},
        evaluation={
            "sources": [source],
            "num_prompts": 6,
            "every_steps": 2,
            "samples_per_prompt": 1,
            "temperature": 0.0,
        },
        sampling={"max_completion_tokens": 300},
        grpo={"group_size": 4, "groups_per_step": 4},
        # Fewer episodes than a step has: some begin when others have ended.
        generator={"max_num_seqs": 12},
        reward={"num_processes": 1},
        episodes={"max_turn_tokens": 24},
        environments=[{"name": "chatter", "source": f"{game}:Chatter"}],
        checkpoint={"every_steps": 2},
        launch={"num_learner_ranks": 1},
    )
    whole = train(folder, config, "episodes")
    killed = train(folder, config, "episodes-killed", ((1, "generator"), (3, "coordinator")))
    assert_equal(whole, killed, 4)
    num_turns = [row["episodes/turns"] for row in rows_of(whole) if "time/step" in row]
    assert len(num_turns) == 4 and min(num_turns) >= 2, f"turns of an episode, on average, in each step: {num_turns}"


@pytest.fixture(scope="module")
def usual(folder: Path) -> Path:
    """The run without the mode. Nobody touches it either."""
    return train(folder, config_of(folder, "usual", deterministic=False, kl=FOLLOWS), "usual")


@pytest.mark.timeout(4 * WAIT_S)
def test_without_the_mode_a_run_that_loses_a_generator_is_another_one(folder: Path, usual: Path) -> None:
    """The comparisons above can fail: what shares a step on two threads shows in the last bits."""
    config = config_of(folder, "usual-killed", deterministic=False, kl=FOLLOWS)
    killed = train(folder, config, "usual-killed", ((2, "generator"),))
    found = differences(usual, killed)
    print(f"{len(found)} differences, the first are {found[:3]}")
    assert found, "two runs that sampled other batches are equal"


@pytest.mark.timeout(4 * WAIT_S)
def test_the_mode_shows_its_cost(whole: Path, usual: Path) -> None:
    costs = {}
    for name, run in (("deterministic", whole), ("usual", usual)):
        rows = [row for row in rows_of(run) if "time/step" in row][1:]
        assert len(rows) == NUM_STEPS - 1
        seconds, tokens = (sum(row[metric] for row in rows) for metric in ("time/step", "val/num_step_tokens"))
        waits = sum(row["time/waiting_for_groups"] for row in rows)
        costs[name] = seconds / len(rows), tokens / seconds, tokens / waits
        print(
            "{}: {:.2f} s a step, {:.0f} tokens/s, {:.0f} while groups are sampled and scored".format(
                name, *costs[name]
            )
        )
    ratios = [one / other for one, other in zip(costs["deterministic"], costs["usual"], strict=True)]
    print("deterministic to usual: {:.2f} of the time, {:.2f} and {:.2f} of the tokens/s".format(*ratios))
    print(f"{len(differences(whole, usual))} differences")
