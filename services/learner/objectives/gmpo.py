"""GMPO (arXiv:2507.20673): the geometric mean of the tokens' ratios, each clipped by itself.

-A exp(mean over the completion's tokens of l), with l the log-ratio, held below `gmpo_log_clip_high` where A > 0 and
above minus `gmpo_log_clip_low` where A < 0. Every token of a completion has the completion's loss.
"""

import torch

from services.learner.objectives.tokens import PolicyLoss, PolicyTokens, policy_loss
from shoal.config.loss import LossConfig


def gmpo(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Clipped means: the token's log-ratio was held."""
    advantages_C, log_ratio_C = tokens.advantages_C, tokens.log_ratio_C
    is_high_C = (advantages_C > 0) & (log_ratio_C > config.gmpo_log_clip_high)
    is_low_C = (advantages_C < 0) & (log_ratio_C < -config.gmpo_log_clip_low)
    held_C = torch.clamp(log_ratio_C, -config.gmpo_log_clip_low, config.gmpo_log_clip_high)
    clipped_C = torch.where(is_high_C | is_low_C, held_C, log_ratio_C)
    completions = tokens.completions
    ratio_C = completions.spread(torch.exp(completions.mean(clipped_C)))
    return policy_loss(-advantages_C * ratio_C, low_C=is_low_C, high_C=is_high_C)
