"""PPO's clipped surrogate (arXiv:1707.06347), with a separate upper clip and a bound where A < 0.

With r = exp(log pi - baseline): max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A). `clip_high` above `clip_low` is
DAPO's clip-higher (arXiv:2503.14476). With `dual_clip` c, the loss of a token of negative advantage is at most -c A,
so a large ratio cannot blow up the step (arXiv:1912.09729).
"""

import torch
from torch import Tensor

from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens, live_exp
from shoal.config.tables.loss import LossConfig


def ppo_clip(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Returns the surrogate on each token's own ratio."""
    return clipped_surrogate(live_exp(tokens.log_ratio_C), tokens.advantages_C, config)


def clipped_surrogate(ratio_C: Tensor, advantages_C: Tensor, config: LossConfig) -> PolicyLoss:
    """Returns the surrogate on [C] ratios with gradient. A token counts as clipped if the clip changed its loss."""
    low, high = 1 - config.clip_low, 1 + config.clip_high
    # With an advantage of 0 the loss is 0 even where the ratio is infinite.
    ratio_C = torch.where(advantages_C == 0, 1.0, ratio_C)
    loss_C = torch.maximum(-ratio_C * advantages_C, -torch.clamp(ratio_C, low, high) * advantages_C)
    is_dual_clipped_C = torch.zeros_like(loss_C, dtype=torch.bool)
    if config.dual_clip is not None:
        bound_C = -config.dual_clip * advantages_C
        is_dual_clipped_C = (advantages_C < 0) & (loss_C > bound_C)
        loss_C = torch.where(advantages_C < 0, torch.minimum(loss_C, bound_C), loss_C)
    return PolicyLoss(
        loss_C,
        is_clipped_low_C=(ratio_C < low) & (advantages_C < 0),
        is_clipped_high_C=(ratio_C > high) & (advantages_C > 0),
        is_dual_clipped_C=is_dual_clipped_C,
    )
