"""The answer of a reward model, and its value."""

import math
from dataclasses import dataclass
from typing import Literal


class ModelFailed(Exception):
    """The model gave no answer, or its answer is not finite. The message says why."""


@dataclass(frozen=True)
class Answer:
    """The answer for one completion."""

    logits: tuple[float, ...]
    """The logit of each label."""
    num_tokens: int | None
    """Length of the input; None if unknown."""


def value_of(answer: Answer, label: int, kind: Literal["logit", "sigmoid", "softmax"]) -> float:
    """Returns the value of a label. Raises `ModelFailed` if the answer lacks the label, or is not finite."""
    logits = answer.logits
    if label >= len(logits):
        raise ModelFailed(f"the answer has {len(logits)} labels, so there is no label {label} (reward.model.label)")
    if not all(map(math.isfinite, logits)):
        raise ModelFailed(f"the model's logits are not finite: {' '.join(f'{logit:g}' for logit in logits)}")
    logit = logits[label]
    if kind == "sigmoid":
        return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
    if kind == "softmax":
        # Subtract the largest logit, whose exp could overflow.
        highest = max(logits)
        return math.exp(logit - highest) / math.fsum(math.exp(one - highest) for one in logits)
    return logit
