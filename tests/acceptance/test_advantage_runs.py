"""Short whole runs with real engines, one per option of advantages; the ledger or a metric shows its effect."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.store.rollouts import whole_ledger
from tests.support.local_stack import STARTING_S, LocalStack, guessing_config, write_config

pytestmark = pytest.mark.timeout(900)

NUM_STEPS = 4


def run(folder: Path, **sections: dict[str, Any]) -> tuple[list[dict[str, float]], sqlite3.Connection]:
    """Runs a configuration to its end; returns the metrics of each step, and the ledger."""
    config = guessing_config(folder, **sections)
    config["run"]["num_steps"] = NUM_STEPS
    path = write_config(folder / "run.toml", config)
    stack = LocalStack(folder / "data", "short", str(path), "--name", "short")
    try:
        assert stack.wait(STARTING_S + 240) == 0, stack.tail()
    finally:
        stack.end()
    rows = stack.metrics()
    assert len(rows) == NUM_STEPS, f"{len(rows)} steps, not {NUM_STEPS}"
    assert all(value == value for row in rows for value in row.values()), "a metric is not a number"
    return rows, whole_ledger(stack.folder)


def test_dapo_samples_on_until_each_step_has_its_groups(tmp_path: Path) -> None:
    rows, ledger = run(
        tmp_path,
        grpo={"active_sampling": True, "max_refills": 20, "groups_per_step": 2, "mask_truncated_completions": True},
        loss={"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token-mean"},
    )
    refills = [row["batch/refills"] for row in rows]
    trained = dict(ledger.execute("SELECT train_step, COUNT(*) FROM groups WHERE state = 'TRAINED' GROUP BY 1"))
    print("refills", refills, "trained", trained, "loss", [row["objective/loss"] for row in rows])
    assert sum(refills) > 0, f"no group was without a signal: {refills}"
    assert all(row["batch/filtered_prompts"] > 0 for row in rows if row["batch/refills"]), rows
    for step, refilled in enumerate(refills, start=1):
        assert trained[step] == 2 or refilled == 40, f"step {step} trained on {trained[step]} groups"
    assert all(row["staleness/max"] == 0 for row in rows)
    (truncated,) = ledger.execute(
        "SELECT COUNT(*) FROM completions WHERE advantage IS NOT NULL AND finish_reason = 'length'"
    ).fetchone()
    assert truncated == 0, f"{truncated} truncated completions were trained on"


def test_rloo_compares_with_siblings_rewards_less_the_kl(tmp_path: Path) -> None:
    rows, _ = run(
        tmp_path,
        advantage={"baseline": "leave_one_out", "scale": "none"},
        loss={"objective": "policy_gradient"},
        kl={"coef": 0.5, "place": "reward", "estimator": "k1", "reward_level": "completion"},
    )
    distances = [row["objective/reward_kl"] for row in rows]
    print("kl in the reward", distances, "grad", [row.get("optim/grad_norm") for row in rows])
    assert abs(distances[0]) < 1e-3, f"the policy begins as the reference, but differs by {distances[0]}"
    assert abs(distances[-1]) > 10 * abs(distances[0]), f"the policy moved, the KL did not: {distances}"


def test_dr_grpo_leaves_the_spread_of_a_group_in_its_advantages(tmp_path: Path) -> None:
    rows, ledger = run(
        tmp_path,
        advantage={"scale": "none"},
        loss={"aggregation": "seq-mean-token-sum-norm"},
        grpo={"max_staleness": 1},
    )
    largest = [row["val/advantages_max"] for row in rows]
    print("largest advantages", largest, "grad", [row.get("optim/grad_norm") for row in rows])
    assert all(0 < value < 1 for value in largest), f"rewards are 0 or 1, so r - mean is below 1: {largest}"
    groups: dict[int, list[tuple[float, float]]] = {}
    for order_number, reward, advantage in ledger.execute(
        "SELECT order_number, reward, advantage FROM completions WHERE advantage IS NOT NULL"
    ):
        groups.setdefault(order_number, []).append((reward, advantage))
    for pairs in groups.values():
        mean = sum(reward for reward, _ in pairs) / len(pairs)
        assert all(abs(advantage - (reward - mean)) < 1e-9 for reward, advantage in pairs), pairs


def test_remax_asks_for_a_greedy_answer_of_each_prompt(tmp_path: Path) -> None:
    _, ledger = run(tmp_path, advantage={"baseline": "greedy", "scale": "none"})
    rows = ledger.execute(
        "SELECT reward, greedy_reward, advantage FROM completions JOIN groups USING (order_number)"
        " WHERE state = 'TRAINED' AND advantage IS NOT NULL"
    ).fetchall()
    assert rows and all(advantage == reward - greedy for reward, greedy, advantage in rows), rows[:8]
