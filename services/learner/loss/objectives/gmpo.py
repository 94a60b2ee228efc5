"""GMPO (arXiv:2507.20673): the geometric mean of the tokens' ratios, with each token's ratio clipped.

-A exp(mean over the completion's tokens of l), with l the log-ratio, clamped to at most `gmpo_log_clip_high` where
A > 0 and to at least -`gmpo_log_clip_low` where A < 0. Every token of a completion has the completion's loss.
"""

import torch

from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens, policy_loss
from shoal.config.tables.loss import LossConfig


def gmpo(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Returns the loss of each token. A token counts as clipped if its log-ratio was clamped."""
    advantages_C, log_ratio_C = tokens.advantages_C, tokens.log_ratio_C
    is_high_C = (advantages_C > 0) & (log_ratio_C > config.gmpo_log_clip_high)
    is_low_C = (advantages_C < 0) & (log_ratio_C < -config.gmpo_log_clip_low)
    clamped_C = torch.clamp(log_ratio_C, -config.gmpo_log_clip_low, config.gmpo_log_clip_high)
    clipped_C = torch.where(is_high_C | is_low_C, clamped_C, log_ratio_C)
    completions = tokens.completions
    ratio_C = completions.spread(torch.exp(completions.mean(clipped_C)))
    return policy_loss(-advantages_C * ratio_C, low_C=is_low_C, high_C=is_high_C)
