"""TOPR (arXiv:2503.14286): the plain policy gradient for rewarded completions, a truncated ratio for all others.

Reward above 0: -`topr_positive_weight` A log pi. Otherwise: -`topr_negative_weight` sg(clip(r, ratio_low, ratio_high))
A log pi. The case depends on the reward, not on the advantage.
"""

import torch

from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens, policy_loss, weighted_logprobs
from shoal.config.tables.loss import LossConfig


def topr(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Returns the loss of each token. A token counts as clipped if it is unrewarded and its weight was bounded."""
    ratio_C = torch.exp(tokens.detached_log_ratio_C)
    is_rewarded_C = tokens.rewards_C > 0
    bounded_C = config.topr_negative_weight * torch.clamp(ratio_C, config.ratio_low, config.ratio_high)
    weights_C = torch.where(is_rewarded_C, config.topr_positive_weight, bounded_C)
    return policy_loss(
        weighted_logprobs(tokens, weights_C),
        low_C=~is_rewarded_C & (ratio_C < config.ratio_low),
        high_C=~is_rewarded_C & (ratio_C > config.ratio_high),
    )
