"""The plain policy gradient (REINFORCE): -A log pi. The baseline's log-probabilities are not used.

The objective assumes that the policy itself sampled the tokens. Off-policy, the gradient of the objective is biased.
"""

import torch

from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens, policy_loss, weighted_logprobs
from shoal.config.tables.loss import LossConfig


def policy_gradient(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Returns the loss of each token. Nothing is ever clipped."""
    return policy_loss(weighted_logprobs(tokens, torch.ones_like(tokens.advantages_C)))
