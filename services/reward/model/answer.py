"""What a reward model says, and what that is worth."""

import math
from dataclasses import dataclass
from typing import Literal


class ModelFailed(Exception):
    """The model could not be asked, or its answer is no number. The message says why."""


@dataclass(frozen=True)
class Answer:
    """What a model says of one completion."""

    logits: tuple[float, ...]
    """One for each label."""
    num_tokens: int | None
    """Length of the input; None where nobody said."""


def value_of(answer: Answer, label: int, kind: Literal["logit", "sigmoid", "softmax"]) -> float:
    """The value of a label. Raises `ModelFailed` when the answer has no such label, or is not finite."""
    logits = answer.logits
    if label >= len(logits):
        raise ModelFailed(f"the answer has {len(logits)} labels, so there is no number {label} (reward.model.label)")
    if not all(map(math.isfinite, logits)):
        raise ModelFailed(f"the model's logits are not finite: {' '.join(f'{logit:g}' for logit in logits)}")
    logit = logits[label]
    if kind == "sigmoid":
        return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
    if kind == "softmax":
        # The largest is taken off all of them: exp of it would overflow.
        highest = max(logits)
        return math.exp(logit - highest) / math.fsum(math.exp(one - highest) for one in logits)
    return logit
