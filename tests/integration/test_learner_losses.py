"""Real DeepSpeed on one, two and three ranks: a way to configure the loss has one gradient, and trains.

These are the ways that use every part of the loss; tests/acceptance/test_learner_losses.py takes all of them.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.loss_variants import CORE
from tests.tiny_model import make_tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("learner_losses.py")
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
RANKS = (1, 2, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("losses")
    train(folder, CORE)
    return folder


def train(folder: Path, variants: Iterable[str]) -> None:
    """Lets learners of one, two and three ranks train with each variant, and leave what they did in a folder."""
    make_tiny_model(folder / "model")
    for num_ranks in RANKS:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
        command = [sys.executable, *launcher, str(SCRIPT), str(folder), *variants]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr[-4000:]


def result_of(folder: Path, num_ranks: int, variant: str) -> dict[str, Any]:
    result = json.loads((folder / str(num_ranks) / "result.json").read_text())[variant]
    assert isinstance(result, dict)
    return result


def gradient_of(folder: Path, num_ranks: int, variant: str) -> torch.Tensor:
    gradients = load_file(folder / str(num_ranks) / f"{variant}.safetensors")
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)])


@pytest.mark.parametrize("variant", CORE)
def test_the_gradient_does_not_depend_on_the_number_of_ranks(folder: Path, variant: str) -> None:
    check_gradients(folder, variant)


@pytest.mark.parametrize("variant", CORE)
def test_steps_of_two_mini_batches_and_two_epochs_are_taken_and_measured_alike(folder: Path, variant: str) -> None:
    check_steps(folder, variant)


def check_gradients(folder: Path, variant: str) -> None:
    """The gradient of a variant does not depend on the number of ranks."""
    alone = gradient_of(folder, 1, variant)
    assert float(alone.norm()) > 0
    for num_ranks in RANKS[1:]:
        distance = float((gradient_of(folder, num_ranks, variant) - alone).norm() / alone.norm())
        assert distance <= 1e-5, f"{num_ranks} ranks: relative L2 distance {distance:.2e}"


def check_steps(folder: Path, variant: str) -> None:
    """Steps of two mini-batches and two epochs are taken, and measured alike on any number of ranks."""
    alone = result_of(folder, 1, variant)
    assert alone["applied"] == [True, True]
    for metrics in alone["metrics"]:
        wrong = {name: value for name, value in metrics.items() if not math.isfinite(value)}
        assert not wrong, f"not finite: {wrong}"
    for num_ranks in RANKS[1:]:
        first = result_of(folder, num_ranks, variant)["metrics"][0]
        for name in set(first) - {"other/packed_ratio", "time/training", "learner_tokens_per_second_step"}:
            # Later mini-batches are behind optimizer steps, whose first is a sign of the gradient: noise grows there.
            assert first[name] == pytest.approx(alone["metrics"][0][name], rel=2e-2, abs=2e-3), (num_ranks, name)


@pytest.mark.parametrize("num_ranks", RANKS)
def test_a_step_whose_tokens_are_all_rejected_is_not_taken(folder: Path, num_ranks: int) -> None:
    result = result_of(folder, num_ranks, "nothing left")
    reason = "correction.filters rejected every token"
    assert result == {"applied": False, "reason": reason, "version": 0}


def first_metrics(folder: Path, variant: str) -> dict[str, float]:
    metrics = result_of(folder, 1, variant)["metrics"][0]
    assert isinstance(metrics, dict)
    return metrics


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
