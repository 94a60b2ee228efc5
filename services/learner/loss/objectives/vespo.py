"""VESPO: a smooth weight of the whole completion in place of a clip.

-sg(phi(w)) A log pi, with w the product of the completion's ratios and phi(w) = e^lambda w^k e^(-lambda w). phi is 1
at w = 1 and falls to 0 on both sides. k and lambda depend on the sign of A.
"""

import torch

from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens, policy_loss, weighted_logprobs
from shoal.config.tables.loss import LossConfig


def vespo(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Returns the loss of each token. Nothing is ever clipped."""
    completions = tokens.completions
    log_weight_C = completions.spread(completions.sum(tokens.detached_log_ratio_C))
    k_C = tokens.by_sign(config.vespo_k_positive, config.vespo_k_negative)
    lambda_C = tokens.by_sign(config.vespo_lambda_positive, config.vespo_lambda_negative)
    # Use logarithms: w^k may overflow where its product with e^(-lambda w) is about 0.
    log_phi_C = lambda_C + k_C * log_weight_C - lambda_C * torch.exp(log_weight_C)
    return policy_loss(weighted_logprobs(tokens, torch.exp(log_phi_C)))
