"""The input and the output of an objective."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from services.learner.loss.objectives.completions import Completions


@dataclass(frozen=True)
class PolicyTokens:
    """The tokens of whole completions that count in the loss. All tensors are [C], of the same float type."""

    logprobs_C: Tensor
    """log pi(token), with gradient."""
    detached_logprobs_C: Tensor
    """log pi(token) without gradient, for weights that an objective treats as constants."""
    baseline_logprobs_C: Tensor
    """The denominator of the ratio: behavior or proximal log-probabilities, without NaN (see `known_baseline`)."""
    advantages_C: Tensor
    rewards_C: Tensor
    """The reward of the token's completion; NaN if the completion has no reward. Only TOPR reads the reward."""
    completions: Completions

    @cached_property
    def log_ratio_C(self) -> Tensor:
        """log (pi / baseline), with gradient."""
        return self.logprobs_C - self.baseline_logprobs_C

    @cached_property
    def detached_log_ratio_C(self) -> Tensor:
        """log (pi / baseline), without gradient."""
        return self.detached_logprobs_C - self.baseline_logprobs_C

    def by_sign(self, positive: float, other: float) -> Tensor:
        """Returns `positive` for tokens with a positive advantage, and `other` for all other tokens, [C]."""
        return torch.full_like(self.advantages_C, other).masked_fill(self.advantages_C > 0, positive)


@dataclass(frozen=True)
class PolicyLoss:
    """The loss of each token. Every field is [C]."""

    loss_C: Tensor
    """The loss to minimize, with gradient."""
    is_clipped_low_C: Tensor
    """bool: a lower bound changed the objective or its gradient."""
    is_clipped_high_C: Tensor
    """bool: an upper bound changed the objective or its gradient."""
    is_dual_clipped_C: Tensor
    """bool: the dual clip changed the objective."""


def live_exp(log_C: Tensor) -> Tensor:
    """Computes exp, [C], with gradient 0 for a result that is too large for its type.

    Such a result is infinite. A clipped value then stays bounded, and an unbounded value gives an infinite loss, which
    the step refuses. With plain `torch.exp` the gradient of a clipped-away value would be 0 x infinity.
    """
    limit = math.log(torch.finfo(log_C.dtype).max) - 1
    return torch.where(log_C > limit, torch.inf, torch.exp(log_C.clamp(max=limit)))


def known_baseline(baseline_logprobs_C: Tensor, detached_logprobs_C: Tensor) -> Tensor:
    """Replaces unknown (NaN) baselines by the policy itself, [C]. Then the ratio is 1 and the gradient on-policy."""
    return torch.where(torch.isnan(baseline_logprobs_C), detached_logprobs_C, baseline_logprobs_C)


def policy_loss(loss_C: Tensor, *, low_C: Tensor | None = None, high_C: Tensor | None = None) -> PolicyLoss:
    """Makes a `PolicyLoss` from [C] losses and [C] bool clip masks; None means that nothing was clipped."""
    nowhere_C = torch.zeros_like(loss_C, dtype=torch.bool)
    low_C, high_C = (nowhere_C if clipped_C is None else clipped_C for clipped_C in (low_C, high_C))
    return PolicyLoss(loss_C, low_C, high_C, nowhere_C)


def weighted_logprobs(tokens: PolicyTokens, weights_C: Tensor) -> Tensor:
    """Returns -sg(weight) x advantage x log pi, [C]: the score-function form of a policy gradient."""
    return -weights_C.detach() * tokens.advantages_C * tokens.logprobs_C
