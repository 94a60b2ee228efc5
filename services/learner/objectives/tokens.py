"""What an objective is given, and what it returns."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from services.learner.completions import Completions


@dataclass(frozen=True)
class PolicyTokens:
    """[C] tokens that count in the loss, of whole completions. All the same float type."""

    logprobs_C: Tensor
    """log pi(token), with gradient."""
    held_logprobs_C: Tensor
    """The same without: what objectives take weights from that they hold constant."""
    baseline_logprobs_C: Tensor
    """What the ratio compares with: behavior or proximal. No NaN (see `known_baseline`)."""
    advantages_C: Tensor
    rewards_C: Tensor
    """Each token's completion's reward; NaN where there is none. Only TOPR looks."""
    completions: Completions

    @cached_property
    def log_ratio_C(self) -> Tensor:
        """log pi / baseline, with gradient."""
        return self.logprobs_C - self.baseline_logprobs_C

    @cached_property
    def held_log_ratio_C(self) -> Tensor:
        """The same, constant."""
        return self.held_logprobs_C - self.baseline_logprobs_C

    def by_sign(self, positive: float, other: float) -> Tensor:
        """[C] one constant where the advantage is positive, the other elsewhere."""
        return torch.full_like(self.advantages_C, other).masked_fill(self.advantages_C > 0, positive)


@dataclass(frozen=True)
class PolicyLoss:
    """[C] each."""

    loss_C: Tensor
    """To be minimised, with gradient."""
    is_clipped_low_C: Tensor
    """bool: where a bound from below changed the objective or its gradient."""
    is_clipped_high_C: Tensor
    """bool: where a bound from above did."""
    is_dual_clipped_C: Tensor
    """bool: where the dual clip did."""


def live_exp(log_C: Tensor) -> Tensor:
    """[C] exp, with gradient 0 where it is too large for its type.

    There it is infinite: what a clip bounds stays bounded, and what nothing bounds has an infinite loss, which is
    refused. Left to itself, the gradient of what was clipped away would be 0 times infinity.
    """
    most = math.log(torch.finfo(log_C.dtype).max) - 1
    return torch.where(log_C > most, torch.inf, torch.exp(log_C.clamp(max=most)))


def known_baseline(baseline_logprobs_C: Tensor, held_logprobs_C: Tensor) -> Tensor:
    """[C] the baseline, and the policy itself where it is unknown (NaN): the ratio is 1, with an on-policy gradient."""
    return torch.where(torch.isnan(baseline_logprobs_C), held_logprobs_C, baseline_logprobs_C)


def policy_loss(
    loss_C: Tensor, *, low_C: Tensor | None = None, high_C: Tensor | None = None, dual_C: Tensor | None = None
) -> PolicyLoss:
    """A loss, and where it was clipped; nowhere unless said."""
    nowhere_C = torch.zeros_like(loss_C, dtype=torch.bool)
    return PolicyLoss(
        loss_C,
        nowhere_C if low_C is None else low_C,
        nowhere_C if high_C is None else high_C,
        nowhere_C if dual_C is None else dual_C,
    )


def weighted_logprobs(tokens: PolicyTokens, weights_C: Tensor) -> Tensor:
    """[C] -weight x advantage x log pi, the weight held constant: the score-function form of a policy gradient."""
    return -weights_C.detach() * tokens.advantages_C * tokens.logprobs_C
