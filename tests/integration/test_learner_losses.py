"""Real DeepSpeed on one and three ranks: each variant of the loss has the same gradient and trains.

Four groups on three ranks: shares are unequal. test_learner_ranks.py has two ranks, and
tests/unit/services/learner/loss/test_policy_loss.py has all variants.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.learner_results import assert_same_gradient, is_measured
from tests.support.loss_variants import CORE
from tests.support.ranks import run_ranks
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

RANKS = (1, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of learners with each number of ranks, which have trained with each variant side by side."""
    folder = tmp_path_factory.mktemp("losses")
    make_tiny_model(folder / "model")
    run_ranks("tests.integration.learner_losses", RANKS, str(folder), *CORE)
    return folder


def result_of(folder: Path, num_ranks: int, variant: str) -> dict[str, Any]:
    return json.loads((folder / str(num_ranks) / "result.json").read_text())[variant]


@pytest.mark.parametrize("variant", CORE)
def test_the_gradient_does_not_depend_on_the_number_of_ranks(folder: Path, variant: str) -> None:
    one, three = (folder / str(num_ranks) / f"{variant}.safetensors" for num_ranks in RANKS)
    assert_same_gradient(three, one)


@pytest.mark.parametrize("variant", CORE)
def test_a_step_of_two_mini_batches_and_two_epochs_is_taken_and_measured_alike(folder: Path, variant: str) -> None:
    alone = result_of(folder, 1, variant)
    assert alone["applied"] and all(alone["applied"])
    for metrics in alone["metrics"]:
        wrong = {name: value for name, value in metrics.items() if not math.isfinite(value)}
        assert not wrong, f"not finite: {wrong}"
    first = result_of(folder, 3, variant)["metrics"][0]
    for name in filter(is_measured, first):
        # Later mini-batches are behind optimizer steps, whose first is a sign of the gradient: noise grows there.
        assert first[name] == pytest.approx(alone["metrics"][0][name], rel=2e-2, abs=2e-3), name


@pytest.mark.parametrize("num_ranks", RANKS)
def test_a_step_whose_tokens_are_all_rejected_is_not_taken(folder: Path, num_ranks: int) -> None:
    result = result_of(folder, num_ranks, "nothing left")
    reason = "correction.filters rejected every token"
    assert result == {"applied": False, "reason": reason, "version": 0}


def first_metrics(folder: Path, variant: str) -> dict[str, float]:
    return result_of(folder, 1, variant)["metrics"][0]


def test_what_an_option_should_move_moves(folder: Path) -> None:
    plain = first_metrics(folder, "ppo_clip")
    assert plain["policy/clipfrac_low"] > 0 and plain["policy/clipfrac_high"] > 0
    assert plain["val/rho_drop_frac"] == plain["val/rejected_share"] == plain["val/dropped_share"] == 0
    assert 0 < plain["mismatch/effective_sample_size"] < 1
    assert plain["val/num_missing_behavior_logprobs"] > 0
    assert first_metrics(folder, "dual clip")["policy/clipfrac_dual"] > 0
    assert first_metrics(folder, "truncated importance weights")["val/rho_clipfrac"] > 0
    assert first_metrics(folder, "icepop")["val/rho_drop_low_frac"] > 0
    assert first_metrics(folder, "icepop")["val/rho_drop_high_frac"] > 0
    assert 0 < first_metrics(folder, "rejection")["val/rejected_share"] < 1
    assert first_metrics(folder, "top entropy")["val/dropped_share"] == pytest.approx(0.7, abs=0.05)
    assert first_metrics(folder, "off-policy mask")["val/dropped_share"] > 0
    assert abs(first_metrics(folder, "normalized sequence weights")["val/rho_weight"] - 1) < 1
    # At the first mini-batch the proximal policy is the policy itself; behind it the ratio moves.
    assert first_metrics(folder, "truncated importance weights")["val/ratio"] == pytest.approx(1, abs=0.2)
    adaptive = result_of(folder, 1, "adaptive kl")
    assert adaptive["kl_coef"] != 0.2
    assert adaptive["metrics"][1]["objective/kl_coef"] != adaptive["metrics"][0]["objective/kl_coef"]
