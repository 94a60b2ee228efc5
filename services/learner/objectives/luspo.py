"""LUSPO: GSPO whose completions count with the sum of their tokens, so that length does not dilute a token's gradient.

The loss of a token is GSPO's; the difference is the aggregation, seq-mean-token-sum, which `auto` chooses.
"""

from services.learner.objectives.gspo import gspo
from services.learner.objectives.tokens import PolicyLoss, PolicyTokens
from shoal.config.loss import LossConfig


def luspo(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """As `gspo`."""
    return gspo(tokens, config)
