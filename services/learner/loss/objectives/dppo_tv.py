"""DPPO by total variation: a trust region on the change of a token's probability, in place of a range of ratios.

-sg(min(r, dppo_ratio_cap)) A log pi; and 0 for a token whose probability has already moved too far in the direction in
which its advantage pushes. "Too far" is more than `dppo_divergence_high` up where A > 0, and more than
`dppo_divergence_low` down for all other tokens. The divergence here is the total variation |p - q| of policy p and
baseline q. Rare tokens have large ratios at divergences that hardly matter: PPO drops them, DPPO does not.
"""

import torch
from torch import Tensor

from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens, policy_loss, weighted_logprobs
from shoal.config.tables.loss import LossConfig


def dppo_tv(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Returns the loss of each token. A clipped token is dropped."""
    moved_C = torch.exp(tokens.detached_logprobs_C) - torch.exp(tokens.baseline_logprobs_C)
    return within_trust_region(moved_C.abs(), tokens, config)


def within_trust_region(divergence_C: Tensor, tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Returns the loss of each token, given [C] divergences from the baseline. A clipped token is dropped."""
    log_ratio_C, advantages_C = tokens.detached_log_ratio_C, tokens.advantages_C
    is_high_C = (advantages_C > 0) & (log_ratio_C > 0) & (divergence_C > config.dppo_divergence_high)
    is_low_C = (advantages_C <= 0) & (log_ratio_C < 0) & (divergence_C > config.dppo_divergence_low)
    weights_C = torch.exp(log_ratio_C).clamp(max=config.dppo_ratio_cap)
    weights_C = torch.where(is_high_C | is_low_C, 0.0, weights_C)
    return policy_loss(weighted_logprobs(tokens, weights_C), low_C=is_low_C, high_C=is_high_C)
