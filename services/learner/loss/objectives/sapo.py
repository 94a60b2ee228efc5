"""SAPO (arXiv:2511.20347): a soft gate in place of the clip.

-A sigmoid(tau (r - 1)) 4 / tau, with tau = `sapo_tau_positive` where A > 0 and `sapo_tau_negative` elsewhere. At r = 1
the gradient is the plain surrogate's. As r moves away from 1, the gradient decreases gradually.
"""

import torch

from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens, live_exp, policy_loss
from shoal.config.tables.loss import LossConfig


def sapo(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Returns the loss of each token. Nothing is ever clipped."""
    tau_C = tokens.by_sign(config.sapo_tau_positive, config.sapo_tau_negative)
    gate_C = torch.sigmoid(tau_C * (live_exp(tokens.log_ratio_C) - 1))
    return policy_loss(-tokens.advantages_C * gate_C * 4 / tau_C)
