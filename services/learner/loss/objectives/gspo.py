"""GSPO (arXiv:2507.18071): the clipped surrogate on the ratio of the whole completion.

s = exp(mean over the completion's tokens of log pi - baseline) has the same value for each of the completion's tokens.
Each token carries its own part of the gradient (the paper's GSPO-token), so that advantages, weights and masks may
differ from token to token. If these values do not differ, the gradient equals the gradient of s. The loss is the mean
over completions of their token means.
"""

from torch import Tensor

from services.learner.loss.objectives.ppo_clip import clipped_surrogate
from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens, live_exp
from shoal.config.tables.loss import LossConfig


def gspo(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Returns the surrogate on each completion's ratio. A token counts as clipped if its completion was clipped."""
    return clipped_surrogate(sequence_ratio(tokens), tokens.advantages_C, config)


def sequence_ratio(tokens: PolicyTokens) -> Tensor:
    """Returns for each token its completion's ratio (geometric mean), [C], with the token's part of the gradient."""
    mean_C = tokens.completions.spread(tokens.completions.mean(tokens.detached_log_ratio_C))
    return live_exp(mean_C + tokens.logprobs_C - tokens.detached_logprobs_C)
