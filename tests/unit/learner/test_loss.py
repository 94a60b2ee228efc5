"""The loss, against numbers worked out by hand and against golden cases."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from services.learner.loss import grpo_loss

GOLDEN = Path(__file__).parents[4] / "shared" / "golden"


def golden(name: str, *variants: str) -> list[Any]:
    path = GOLDEN / f"{name}.json"
    if not path.exists():
        return []
    cases = json.loads(path.read_text())["cases"]
    return [pytest.param(case, id=case["name"]) for case in cases if case["variant"] in variants]


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_loss_of_each_token_is_what_the_formula_gives_by_hand() -> None:
    ratio = tensor([1.0, 1.5, 1.5, 0.5, 0.5, 1.1])
    advantage = tensor([2.0, 2.0, -2.0, 2.0, -2.0, 3.0])
    behavior = torch.full((6,), -1.0, dtype=torch.float64)
    losses = grpo_loss(behavior + ratio.log(), behavior, advantage, clip_low=0.2, clip_high=0.28)
    # Clipped above at 1.28 where that lowers the gain, below at 0.8 where that raises the loss.
    torch.testing.assert_close(losses.loss_C, tensor([-2.0, -2.56, 3.0, -1.0, 1.6, -3.3]))
    assert losses.is_clipped_high_C.tolist() == [False, True, False, False, False, False]
    assert losses.is_clipped_low_C.tolist() == [False, False, False, False, True, False]


def test_the_kl_term_is_k3_of_the_reference() -> None:
    logprobs, reference = tensor([-1.0, -2.0]), tensor([-1.5, -2.0])
    losses = grpo_loss(
        logprobs, logprobs, tensor([0.0, 0.0]), clip_low=0.2, clip_high=0.2, reference_logprobs_C=reference, kl_coef=0.1
    )
    k3 = math.exp(-0.5) + 0.5 - 1
    torch.testing.assert_close(losses.kl_C, tensor([k3, 0.0]))
    torch.testing.assert_close(losses.loss_C, tensor([0.1 * k3, 0.0]))


def test_a_token_of_unknown_behavior_has_ratio_1_and_an_on_policy_gradient() -> None:
    logprobs = tensor([-1.0, -3.0]).requires_grad_()
    losses = grpo_loss(logprobs, tensor([math.nan, -3.0]), tensor([2.0, 2.0]), clip_low=0.2, clip_high=0.2)
    losses.loss_C.sum().backward()
    torch.testing.assert_close(losses.loss_C.detach(), tensor([-2.0, -2.0]))
    torch.testing.assert_close(logprobs.grad, tensor([-2.0, -2.0]))
    assert losses.log_ratio_C.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "case",
    golden(
        "policy_loss",
        "ppo_clip_symmetric", "ppo_clip_asymmetric", "ppo_on_policy", "ppo_zero_advantage", "ppo_clip_kl_k3",
    ),
)  # fmt: skip
def test_loss_gradient_and_clip_fraction_are_those_of_the_golden_case(case: dict[str, Any]) -> None:
    inputs, expected, config = case["inputs"], case["expected"], case["config"]
    counts = tensor(inputs["mask"]).bool()
    logprobs = tensor(inputs["logprobs"]).requires_grad_()
    advantages = tensor(inputs["advantages"])[:, None].expand_as(logprobs)
    reference = tensor(inputs["ref_logprobs"])[counts] if "ref_logprobs" in inputs else None
    losses = grpo_loss(
        logprobs[counts],
        tensor(inputs["old_logprobs"])[counts],
        advantages[counts],
        clip_low=config["clip_low"],
        clip_high=config["clip_high"],
        reference_logprobs_C=reference,
        kl_coef=config.get("kl_coef", 0.0),
    )
    loss = losses.loss_C.mean()
    loss.backward()
    tolerance = case["tolerance"]
    assert loss.item() == pytest.approx(expected["loss"], rel=tolerance, abs=tolerance)
    torch.testing.assert_close(logprobs.grad, tensor(expected["grad_logprobs"]), rtol=tolerance, atol=tolerance)
    clipped = (losses.is_clipped_low_C | losses.is_clipped_high_C).double().mean().item()
    assert clipped == pytest.approx(expected["clip_fraction"], abs=tolerance)


@pytest.mark.parametrize("case", golden("kl", "k3", "k3_equal"))
def test_the_kl_and_its_gradient_are_those_of_the_golden_case(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    logprobs = tensor(inputs["logprobs"]).requires_grad_()
    losses = grpo_loss(
        logprobs,
        logprobs.detach(),
        torch.zeros_like(logprobs),
        clip_low=0.2,
        clip_high=0.2,
        reference_logprobs_C=tensor(inputs["ref_logprobs"]),
        kl_coef=1.0,
    )
    losses.loss_C.sum().backward()
    torch.testing.assert_close(losses.kl_C, tensor(expected["kl"]), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(logprobs.grad, tensor(expected["grad_logprobs"]), rtol=1e-6, atol=1e-9)
