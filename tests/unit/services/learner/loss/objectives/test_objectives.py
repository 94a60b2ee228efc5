"""Each objective against values computed by hand, and its gradient against finite differences."""

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from services.learner.loss.kl import token_kl
from services.learner.loss.objectives import OBJECTIVES
from services.learner.loss.objectives.completions import Completions
from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens, known_baseline
from shoal.config.tables.kl import KlConfig
from shoal.config.tables.loss import LossConfig, Objective

RATIOS = [1.0, 1.5, 1.5, 0.5, 0.5, 1.1]
ADVANTAGES = [2.0, 2.0, -2.0, 2.0, -2.0, 3.0]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "ppo_clip": [{}, {"dual_clip": 1.3}],
    "cispo": [{}, {"cispo_lower": True}, {"cispo_cap": 1.3}, {"cispo_lower": True, "cispo_unified_mask": True}],
    "gspo": [{}, {"dual_clip": 1.1}],
}


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def tokens_of(
    logprobs: Tensor, baseline: Tensor, advantages: Tensor, *, held: Tensor | None = None, lengths: tuple[int, ...] = ()
) -> PolicyTokens:
    """Makes the tokens of completions of these lengths, or of one; every other completion is rewarded."""
    lengths = lengths or (len(logprobs),)
    index = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    held = logprobs.detach() if held is None else held
    return PolicyTokens(logprobs, held, baseline, advantages, (index % 2).double(), Completions(index, len(lengths)))


def lose(objective: Objective, tokens: PolicyTokens, **options: Any) -> PolicyLoss:
    return OBJECTIVES[objective](tokens, LossConfig.model_validate({"objective": objective, **options}))


def at_ratios(objective: Objective, **options: Any) -> PolicyLoss:
    """Computes losses at log-probabilities of -1 under the policy, so that -weight x A x logp is weight x A."""
    logprobs = torch.full((6,), -1.0, dtype=torch.float64)
    return lose(objective, tokens_of(logprobs, logprobs - tensor(RATIOS).log(), tensor(ADVANTAGES)), **options)


# Tokens: (ratio 1, A 2), (1.5, 2), (1.5, -2), (0.5, 2), (0.5, -2), (1.1, 3). Clip 0.8 to 1.28 by default.
BY_HAND: list[tuple[str, dict[str, Any], list[float]]] = [
    # Clipped above at 1.28 where that lowers the gain, below at 0.8 where that raises the loss.
    ("ppo_clip", {}, [-2.0, -2.56, 3.0, -1.0, 1.6, -3.3]),
    # The loss of a negative advantage is at most 1.2 x 2.
    ("ppo_clip", {"dual_clip": 1.2}, [-2.0, -2.56, 2.4, -1.0, 1.6, -3.3]),
    # The weight is at most 1.28, whatever the sign; it has no lower bound.
    ("cispo", {}, [2.0, 2.56, -2.56, 1.0, -1.0, 3.3]),
    ("cispo", {"cispo_lower": True}, [2.0, 2.56, -2.56, 1.6, -1.6, 3.3]),
    ("cispo", {"cispo_cap": 1.05}, [2.0, 2.1, -2.1, 1.0, -1.0, 3.15]),
    # Tokens that PPO would clip are dropped: up at A > 0, down at A < 0.
    ("cispo", {"cispo_unified_mask": True, "cispo_lower": True}, [2.0, 0.0, -2.56, 1.6, 0.0, 3.3]),
    ("policy_gradient", {}, [2.0, 2.0, -2.0, 2.0, -2.0, 3.0]),
    ("truncated_is", {}, [2.0, 2.0, -2.0, 1.0, -1.0, 3.0]),
    ("truncated_is", {"ratio_low": 0.7, "ratio_high": 1.2}, [2.0, 2.4, -2.4, 1.4, -1.4, 3.3]),
    # None of these was rewarded.
    ("topr", {"topr_negative_weight": 0.5}, [1.0, 1.0, -1.0, 0.5, -0.5, 1.5]),
    ("kimi15", {"kimi15_tau": 2.0}, [a + math.log(r) ** 2 for r, a in zip(RATIOS, ADVANTAGES, strict=True)]),
    # p = e^-1 = 0.368 moved from 0.368, 0.245, 0.245, 0.736, 0.736, 0.334: by 0, 0.123, 0.123, -0.368, -0.368, 0.033.
    ("dppo_tv", {"dppo_divergence_high": 0.1, "dppo_divergence_low": 0.1}, [2.0, 0.0, -3.0, 1.0, 0.0, 3.3]),
    ("dppo_tv", {"dppo_ratio_cap": 1.2, "dppo_divergence_high": 1.0}, [2.0, 2.4, -2.4, 1.0, 0.0, 3.3]),
]


@pytest.mark.parametrize(("objective", "options", "expected"), BY_HAND)
def test_the_loss_of_each_token_is_that_of_the_formula_by_hand(
    objective: Objective, options: dict[str, Any], expected: list[float]
) -> None:
    torch.testing.assert_close(at_ratios(objective, **options).loss_C, tensor(expected))


def test_sapo_is_the_surrogate_at_ratio_1_up_to_a_constant_and_saturates() -> None:
    logprobs = tensor([-1.0, -1.0]).requires_grad_()
    loss = lose("sapo", tokens_of(logprobs, tensor([-1.0, -31.0]), tensor([3.0, 3.0]))).loss_C
    loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, tensor([-3.0, 0.0]))
    torch.testing.assert_close(loss.detach(), tensor([-6.0, -12.0]))


def test_sequence_objectives_use_the_ratio_of_the_completion() -> None:
    baseline = tensor([-1.0, -1.0, -2.0])
    logprobs = baseline + tensor([0.3, -0.1, 0.5])
    tokens = tokens_of(logprobs, baseline, tensor([1.0, 1.0, -1.0]), lengths=(2, 1))
    mean, other = math.exp(0.1), math.exp(0.5)
    torch.testing.assert_close(lose("gspo", tokens).loss_C, tensor([-mean, -mean, other]))
    torch.testing.assert_close(lose("luspo", tokens).loss_C, tensor([-mean, -mean, other]))
    # GMPO clamps the first token's log-ratio to 0.2; where A < 0 there is no upper clamp.
    held = math.exp((0.2 - 0.1) / 2)
    torch.testing.assert_close(lose("gmpo", tokens, gmpo_log_clip_high=0.2).loss_C, tensor([-held, -held, other]))
    # VESPO: the product of the ratios, e^0.2 and e^0.5.
    phi = [math.exp(3) * math.exp(0.2) ** 2 * math.exp(-3 * math.exp(0.2))]
    phi.append(math.exp(2) * math.exp(0.5) ** 3 * math.exp(-2 * math.exp(0.5)))
    expected = tensor([-phi[0], -phi[0], phi[1]]) * logprobs
    torch.testing.assert_close(lose("vespo", tokens).loss_C, expected)


def test_clipped_tokens_are_reported_by_their_side() -> None:
    loss = at_ratios("ppo_clip", dual_clip=1.2)
    assert loss.is_clipped_high_C.tolist() == [False, True, False, False, False, False]
    assert loss.is_clipped_low_C.tolist() == [False, False, False, False, True, False]
    assert loss.is_dual_clipped_C.tolist() == [False, False, True, False, False, False]
    assert at_ratios("cispo").is_clipped_high_C.tolist() == [False, True, True, False, False, False]
    assert at_ratios("cispo", cispo_cap=1.2).is_clipped_high_C.tolist() == [False, True, False, False, False, False]
    assert at_ratios("cispo", cispo_lower=True).is_clipped_low_C.tolist() == [False, False, False, True, True, False]


def test_a_token_of_unknown_baseline_has_ratio_1_and_an_on_policy_gradient() -> None:
    logprobs = tensor([-1.0, -3.0]).requires_grad_()
    baseline = known_baseline(tensor([math.nan, -3.0]), logprobs.detach())
    loss = lose("ppo_clip", tokens_of(logprobs, baseline, tensor([2.0, 2.0]))).loss_C
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), tensor([-2.0, -2.0]))
    torch.testing.assert_close(logprobs.grad, tensor([-2.0, -2.0]))


def random_tokens(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    baseline = -torch.rand(24, generator=generator, dtype=torch.float64) * 4 - 0.1
    gap = torch.randn(24, generator=generator, dtype=torch.float64) * 0.4
    advantages = torch.randn(24, generator=generator, dtype=torch.float64)
    return {"logprobs": (baseline + gap).clamp(max=-0.01), "baseline": baseline, "advantages": advantages}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("objective", "options"),
    [(objective, options) for objective in get_args(Objective) for options in OPTIONS.get(objective, [{}])],
)
def test_the_gradient_is_that_of_finite_differences(objective: Objective, options: dict[str, Any], seed: int) -> None:
    drawn = random_tokens(seed)
    at, lengths = drawn["logprobs"], (5, 1, 11, 7)
    factors = torch.linspace(0.5, 2, len(at), dtype=torch.float64)

    def total(logprobs: Tensor) -> Tensor:
        # What an objective treats as a constant does not move.
        tokens = tokens_of(logprobs, drawn["baseline"], drawn["advantages"], held=at, lengths=lengths)
        return (lose(objective, tokens, **options).loss_C * factors).sum()

    gradcheck(total, at.clone().requires_grad_(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("estimator", "gradient"),
    [(estimator, "plain") for estimator in ("k1", "k2", "k3", "abs", "ratio_k1")]
    + [(estimator, gradient) for estimator in ("k1", "k2", "k3") for gradient in ("bias_corrected", "score_function")],
)
def test_the_gradient_of_the_kl_is_that_of_finite_differences(estimator: str, gradient: str) -> None:
    drawn = random_tokens(7)
    at, reference = drawn["logprobs"], drawn["baseline"].flip(0)
    config = KlConfig.model_validate({"coef": 1.0, "estimator": estimator, "gradient": gradient})

    def total(logprobs: Tensor) -> Tensor:
        tokens = tokens_of(logprobs, drawn["baseline"], drawn["advantages"], held=at)
        return token_kl(tokens, reference, config).sum()

    gradcheck(total, at.clone().requires_grad_(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("gradient", "weight"), [("straight_through", 1.0), ("off_policy", math.exp(0.25))])
def test_a_kl_may_have_the_value_of_one_estimator_and_the_gradient_of_another(gradient: str, weight: float) -> None:
    logprobs = tensor([-1.0]).requires_grad_()
    tokens = tokens_of(logprobs, tensor([-1.25]), tensor([0.0]))
    config = KlConfig.model_validate({"coef": 1.0, "estimator": "k1", "gradient": gradient})
    kl = token_kl(tokens, tensor([-1.5]), config)
    kl.sum().backward()
    torch.testing.assert_close(kl.detach(), tensor([0.5]))
    torch.testing.assert_close(logprobs.grad, tensor([0.5 * weight]))


@pytest.mark.parametrize(
    ("objective", "options", "advantage"),
    [
        ("ppo_clip", {}, 1.0),
        ("ppo_clip", {"dual_clip": 3.0}, -1.0),
        ("ppo_clip", {}, 0.0),
        ("gspo", {}, 1.0),
        ("gspo", {}, 0.0),
        ("sapo", {}, 1.0),
        ("sapo", {}, -1.0),
    ],
)
def test_a_bound_on_ratios_also_bounds_a_ratio_beyond_float32(
    objective: Objective, options: dict[str, Any], advantage: float
) -> None:
    """e^100 is infinite in float32; the gradient of a clipped-away value is 0."""
    logprobs = torch.tensor([-0.5]).requires_grad_()
    loss = lose(objective, tokens_of(logprobs, torch.tensor([-100.5]), torch.tensor([advantage])), **options).loss_C
    loss.sum().backward()
    assert math.isfinite(loss.item()) and logprobs.grad is not None and logprobs.grad.tolist() == [0.0], (
        f"loss {loss.item()}, gradient {logprobs.grad}"
    )


def test_an_unbounded_ratio_beyond_float32_has_an_infinite_loss() -> None:
    tokens = tokens_of(torch.tensor([-0.5]), torch.tensor([-100.5]), torch.tensor([-1.0]))
    assert math.isinf(lose("ppo_clip", tokens).loss_C.item())


def test_a_borrowed_gradient_does_not_round_the_estimate_away() -> None:
    """Uses float32 and a distance of 5000."""
    logprobs = torch.tensor([-0.3]).requires_grad_()
    config = KlConfig(coef=1.0, estimator="k1", gradient="straight_through", output_clamp=0.1)
    kl = token_kl(tokens_of(logprobs, torch.zeros(1), torch.zeros(1)), torch.tensor([-5000.0]), config)
    assert kl.item() == torch.tensor(0.1).item(), kl.item()
