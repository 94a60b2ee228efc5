"""CISPO (MiniMax-M1, arXiv:2506.13585): clips the importance weight, never the gradient of a token.

-sg(w) A log pi, where w is the ratio clamped to at most 1 + clip_high, and with `cispo_lower` to at least 1 - clip_low.
With `cispo_cap` the upper bound is `cispo_cap` itself. `cispo_unified_mask` drops tokens that PPO clips.
"""

import torch

from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens, policy_loss, weighted_logprobs
from shoal.config.tables.loss import LossConfig


def cispo(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Returns the loss of each token.

    A token counts as clipped if its weight was bounded; with `cispo_cap` only at a positive advantage, as in TRL.
    """
    ratio_C, advantages_C = torch.exp(tokens.detached_log_ratio_C), tokens.advantages_C
    low = 1 - config.clip_low
    high = 1 + config.clip_high if config.cispo_cap is None else config.cispo_cap
    is_low_C, is_high_C = ratio_C < low, ratio_C > high
    weights_C = torch.clamp(ratio_C, min=low if config.cispo_lower else None, max=high)
    if config.cispo_unified_mask:
        is_dropped_C = (is_low_C & (advantages_C < 0)) | (is_high_C & (advantages_C > 0))
        weights_C = torch.where(is_dropped_C, 0.0, weights_C)
    return policy_loss(
        weighted_logprobs(tokens, weights_C),
        low_C=is_low_C if config.cispo_lower else None,
        high_C=is_high_C if config.cispo_cap is None else is_high_C & (advantages_C > 0),
    )
