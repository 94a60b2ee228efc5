"""DPPO: a trust region on how far a token's probability has moved, in place of a range of ratios.

-sg(min(r, dppo_ratio_cap)) A log pi, and 0 for a token that has already moved too far in the direction in which its
advantage pushes. "Far" is more than `dppo_divergence_high` up where A > 0, more than `dppo_divergence_low` down
elsewhere; in total variation |p - q|, or in the KL divergence of a token against all others,
q log(q / p) + (1 - q) log((1 - q) / (1 - p)); p is the policy's probability, q the baseline's. Ratios of rare tokens
are large at divergences that hardly matter: those are not dropped here, as they would be by PPO.
"""

import torch
from torch import Tensor

from services.learner.divergence import binary_kl
from services.learner.objectives.tokens import PolicyLoss, PolicyTokens, policy_loss, weighted_logprobs
from shoal.config.loss import LossConfig


def dppo_tv(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """By total variation. Clipped means: dropped."""
    moved_C = torch.exp(tokens.held_logprobs_C) - torch.exp(tokens.baseline_logprobs_C)
    return _within(moved_C.abs(), tokens, config)


def dppo_kl(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """By the binary KL divergence. Clipped means: dropped."""
    return _within(binary_kl(tokens.baseline_logprobs_C, tokens.held_logprobs_C), tokens, config)


def _within(divergence_C: Tensor, tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    log_ratio_C, advantages_C = tokens.held_log_ratio_C, tokens.advantages_C
    is_high_C = (advantages_C > 0) & (log_ratio_C > 0) & (divergence_C > config.dppo_divergence_high)
    is_low_C = (advantages_C <= 0) & (log_ratio_C < 0) & (divergence_C > config.dppo_divergence_low)
    weights_C = torch.exp(log_ratio_C).clamp(max=config.dppo_ratio_cap)
    weights_C = torch.where(is_high_C | is_low_C, 0.0, weights_C)
    return policy_loss(weighted_logprobs(tokens, weights_C), low_C=is_low_C, high_C=is_high_C)
