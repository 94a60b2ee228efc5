"""GSPO (arXiv:2507.18071): the clipped surrogate on the ratio of the whole completion.

s = exp(mean over the completion's tokens of log pi - baseline), the same value for each of its tokens; of the gradient
each token carries its own part (the paper's GSPO-token), so that advantages, weights and masks may differ from token
to token. Where they do not, the gradient is that of s. Averaged over completions, of their token means.
"""

from torch import Tensor

from services.learner.objectives.ppo_clip import clipped_surrogate
from services.learner.objectives.tokens import PolicyLoss, PolicyTokens, live_exp
from shoal.config.loss import LossConfig


def gspo(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """The surrogate on each completion's ratio. A clipped completion counts with each of its tokens."""
    return clipped_surrogate(sequence_ratio(tokens), tokens.advantages_C, config)


def sequence_ratio(tokens: PolicyTokens) -> Tensor:
    """[C] the geometric mean of the completion's ratios, with the token's own part of its gradient."""
    mean_C = tokens.completions.spread(tokens.completions.mean(tokens.held_log_ratio_C))
    return live_exp(mean_C + tokens.logprobs_C - tokens.held_logprobs_C)
