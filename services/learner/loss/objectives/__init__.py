"""The policy's objectives, one module each: the loss of each token from log-probabilities, baseline and advantages.

An objective takes the tokens of whole completions and returns the loss of each token, before weights and averages.
docs/algorithms.md has the formulas, the papers and the names in other systems.

To add an objective, add its name (and its options) to `shoal.config.tables.loss`, write a function of that name in a
module of that name in this package, and add its formula to docs/algorithms.md.
"""

from collections.abc import Callable
from importlib import import_module
from typing import get_args

from services.learner.loss.objectives.tokens import PolicyLoss, PolicyTokens
from shoal.config.tables.loss import LossConfig, Objective

OBJECTIVES: dict[str, Callable[[PolicyTokens, LossConfig], PolicyLoss]] = {
    name: getattr(import_module(f"{__name__}.{name}"), name) for name in get_args(Objective)
}
"""The objectives, by the value of `loss.objective`."""
