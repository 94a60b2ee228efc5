"""Kimi k1.5's objective (arXiv:2501.12599): the policy gradient with a squared penalty on the log-ratio.

-A log pi + tau / 2 (log pi - baseline)^2, with tau = `kimi15_tau`. verl calls this objective `dro`.
"""

from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens, policy_loss
from shoal.config.tables.loss import LossConfig


def kimi15(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Returns the loss of each token. Nothing is ever clipped."""
    square_C = tokens.log_ratio_C.square() / 2
    return policy_loss(-tokens.advantages_C * tokens.logprobs_C + config.kimi15_tau * square_C)
