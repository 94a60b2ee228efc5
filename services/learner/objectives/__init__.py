"""The policy's objectives: from log-probabilities, a baseline and advantages to a loss of each token.

Each takes the tokens of whole completions and returns, of each token, what is to be minimised before any weighting or
averaging. docs/algorithms.md has the formulas, papers and the names that other systems use.
"""

from collections.abc import Callable
from typing import get_args

from services.learner.objectives.cispo import cispo
from services.learner.objectives.dppo import dppo_kl, dppo_tv
from services.learner.objectives.gmpo import gmpo
from services.learner.objectives.gspo import gspo
from services.learner.objectives.kimi15 import kimi15
from services.learner.objectives.luspo import luspo
from services.learner.objectives.policy_gradient import policy_gradient
from services.learner.objectives.ppo_clip import ppo_clip
from services.learner.objectives.sapo import sapo
from services.learner.objectives.tokens import PolicyLoss, PolicyTokens
from services.learner.objectives.topr import topr
from services.learner.objectives.truncated_is import truncated_is
from services.learner.objectives.vespo import vespo
from shoal.config.loss import LossConfig, Objective

OBJECTIVES: dict[Objective, Callable[[PolicyTokens, LossConfig], PolicyLoss]] = {
    "ppo_clip": ppo_clip,
    "cispo": cispo,
    "gspo": gspo,
    "luspo": luspo,
    "sapo": sapo,
    "gmpo": gmpo,
    "vespo": vespo,
    "policy_gradient": policy_gradient,
    "truncated_is": truncated_is,
    "topr": topr,
    "kimi15": kimi15,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
}
"""By the value of `loss.objective`."""

assert set(OBJECTIVES) == set(get_args(Objective)), "an objective is configurable and not built, or the reverse"
