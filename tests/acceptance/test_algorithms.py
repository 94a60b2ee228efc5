"""Short real runs, one per option of the algorithm: every metric is finite, and the option's own metric moves."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.configs import extended
from tests.support.local_stack import LocalStack, guessing_config, write_config

pytestmark = pytest.mark.timeout(900)

NUM_STEPS = 6
Rows = list[dict[str, float]]


@dataclass(frozen=True)
class Variant:
    name: str
    shows: Callable[[Rows], bool]
    """Whether the option's own metric has moved."""
    watched: tuple[str, ...]
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)


def _any(rows: Rows, name: str, holds: Callable[[float], bool]) -> bool:
    return any(holds(row[name]) for row in rows if name in row)


TWO_UPDATES = {"num_mini_batches": 2}
SLOWER = {"learning_rate": 1e-3}
"""Restricted samples resemble each other: at the others' rate all are alike before the last step."""
VARIANTS = (
    Variant(
        "GRPO",
        lambda rows: _any(rows, "val/ratio_max", lambda value: value > 1) and _any(rows, "policy/clipfrac_avg", bool),
        ("val/ratio_max", "policy/clipfrac_avg"),
        {"grpo": TWO_UPDATES},
    ),
    Variant(
        "CISPO",
        lambda rows: _any(rows, "policy/clipfrac_high", bool),
        ("policy/clipfrac_high", "val/ratio_max"),
        {"loss": {"objective": "cispo", "clip_high": 0.01}, "grpo": TWO_UPDATES},
    ),
    Variant(
        "GSPO",
        lambda rows: _any(rows, "policy/clipfrac_avg", bool),
        ("policy/clipfrac_avg", "val/ratio_max"),
        {"loss": {"objective": "gspo", "clip_low": 3e-4, "clip_high": 4e-4}, "grpo": TWO_UPDATES},
    ),
    Variant(
        "DAPO",
        lambda rows: _any(rows, "batch/refills", bool) and all(row["staleness/max"] == 0 for row in rows),
        ("batch/refills", "batch/filtered_prompts"),
        {
            "grpo": {
                "active_sampling": True,
                "max_refills": 20,
                "groups_per_step": 2,
                "mask_truncated_completions": True,
            },
            "loss": {"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token-mean"},
        },
    ),
    Variant(
        "RLOO with KL in the reward",
        # The policy begins as the reference.
        lambda rows: 10 * abs(rows[0]["objective/reward_kl"]) < min(1e-2, abs(rows[-1]["objective/reward_kl"])),
        ("objective/reward_kl",),
        {
            "advantage": {"baseline": "leave_one_out", "scale": "none"},
            "loss": {"objective": "policy_gradient"},
            "kl": {"coef": 0.5, "place": "reward", "estimator": "k1", "reward_level": "completion"},
        },
    ),
    Variant(
        "Dr. GRPO",
        # Rewards are 0 or 1, and nothing divides their distance from the mean.
        lambda rows: all(0 < row["val/advantages_max"] < 1 for row in rows),
        ("val/advantages_max",),
        {
            "advantage": {"scale": "none"},
            "loss": {"aggregation": "seq-mean-token-sum-norm"},
            "grpo": {"max_staleness": 1},
        },
    ),
    Variant(
        "two mini-batches and two epochs",
        lambda rows: _any(rows, "val/ratio_var", lambda value: value > 0),
        ("val/ratio_var", "policy/clipfrac_avg"),
        {"grpo": {"num_mini_batches": 2, "num_epochs": 2}},
    ),
    Variant(
        "a reference that follows the policy",
        # After an update with alpha 1 the reference is the policy: the next step begins at a divergence of 0.
        lambda rows: rows[1]["objective/kl3"] > 0 and rows[2]["objective/kl3"] < 1e-6 < rows[3]["objective/kl3"],
        ("objective/kl3", "loss/kl_avg"),
        {"kl": {"coef": 0.1, "reference_update_steps": 2, "reference_alpha": 1.0}},
    ),
    Variant(
        "sampling replay with KL in the loss",
        # In float32 at staleness 0 the engine and the learner agree; over the whole vocabulary they would not.
        lambda rows: (
            all(row["val/logprob_gap_mean"] < 1e-4 for row in rows)
            and _any(rows, "objective/kl3", lambda value: value > 0)
            and rows[0]["policy/entropy_avg"] < 3.0  # The logarithm of 20 tokens; that of the vocabulary is 5.6.
        ),
        ("val/logprob_gap_mean", "objective/kl3", "policy/entropy_avg", "val/ratio"),
        {"sampling": {"top_k": 20, "top_p": 0.9}, "kl": {"coef": 0.01}, "learner": SLOWER},
    ),
    Variant(
        "sampling replay with KL in the reward",
        lambda rows: (
            all(row["val/logprob_gap_mean"] < 1e-4 for row in rows)
            # The policy is the reference before the first step.
            and abs(rows[0]["objective/kl3"]) < 1e-6
            and _any(rows, "objective/kl3", lambda value: value > 1e-6)
        ),
        ("val/logprob_gap_mean", "objective/kl3", "objective/reward_kl"),
        {"sampling": {"top_k": 20, "min_p": 0.1}, "kl": {"coef": 0.01, "place": "reward"}, "learner": SLOWER},
    ),
    Variant(
        "a staleness of 2 with truncated importance weights",
        lambda rows: (
            _any(rows, "staleness/max", lambda value: value == 2)
            and _any(rows, "val/rho_clipfrac", bool)
            and all(row["staleness/max"] <= 2 for row in rows)
        ),
        ("staleness/max", "val/rho_clipfrac", "val/rho_weight"),
        {
            "grpo": {"max_staleness": 2},
            "loss": {"baseline": "proximal"},
            "correction": {"weight": "token", "weight_high": 1.05},
        },
    ),
)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_short_real_run_shows_what_its_option_does(variant: Variant, tmp_path: Path) -> None:
    sections = {"run": {"num_steps": NUM_STEPS}, "learner": {"zero_stage": 0, "learning_rate": 3e-3}}
    config = extended(guessing_config(tmp_path, **sections), variant.sections)
    with LocalStack(tmp_path / "runs", "short", str(write_config(tmp_path / "run.toml", config))) as stack:
        assert stack.wait(600) == 0, stack.tail()
    rows = [row for row in stack.metrics() if "objective/loss" in row]
    assert [int(row["step"]) for row in rows] == list(range(1, NUM_STEPS + 1)), stack.tail()
    assert all(math.isfinite(value) for row in rows for value in row.values())
    watched = {name: [round(row.get(name, math.nan), 5) for row in rows] for name in variant.watched}
    print(f"\n{variant.name}: {watched}")
    assert variant.shows(rows), watched
