"""The policy gradient with a truncated importance weight: -sg(clip(r, ratio_low, ratio_high)) A log pi.

With the bounds 0 and 1, tokens that have become more likely do not weigh more than 1 (ROLL's `tis`).
"""

import torch

from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens, policy_loss, weighted_logprobs
from shoal.config.tables.loss import LossConfig


def truncated_is(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Returns the loss of each token. A token counts as clipped if its weight was bounded."""
    ratio_C = torch.exp(tokens.detached_log_ratio_C)
    return policy_loss(
        weighted_logprobs(tokens, torch.clamp(ratio_C, config.ratio_low, config.ratio_high)),
        low_C=ratio_C < config.ratio_low,
        high_C=ratio_C > config.ratio_high,
    )
