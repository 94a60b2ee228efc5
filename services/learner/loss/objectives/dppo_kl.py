"""DPPO by the binary KL divergence; otherwise the same as `dppo_tv`.

The divergence of a token against all others is q log(q / p) + (1 - q) log((1 - q) / (1 - p)), with p the policy's
probability and q the baseline's.
"""

from services.learner.loss.objectives.divergence import binary_kl
from services.learner.loss.objectives.dppo_tv import within_trust_region
from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens
from shoal.config.tables.loss import LossConfig


def dppo_kl(tokens: PolicyTokens, config: LossConfig) -> PolicyLoss:
    """Returns the loss of each token. A clipped token is dropped."""
    return within_trust_region(binary_kl(tokens.baseline_logprobs_C, tokens.detached_logprobs_C), tokens, config)
