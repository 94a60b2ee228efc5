"""LUSPO: GSPO with the sum over each completion's tokens, so that length does not dilute a token's gradient.

The loss of a token is GSPO's. The difference is the aggregation, seq-mean-token-sum, which `auto` chooses.
"""

from services.learner.loss.objectives.gspo import gspo
from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens
from shoal.config.tables.loss import LossConfig


def luspo(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Returns the loss of each token, which equals the loss of `gspo`."""
    return gspo(tokens, config)
