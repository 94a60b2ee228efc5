"""Thoughts in tags at the very start."""

from typing import Any

from services.reward.verdict import Verdict

_START, _END = "<think>", "</think>"


def verify(completion: str, label: Any) -> Verdict:
    """Looks for one pair of <think>...</think> that begins the completion, with no second <think> after it.

    For models whose chat template leaves <think> to them. Label: anything. Value: 1 if that is found, else 0.
    """
    return Verdict(float(has_think_format(completion)))


def has_think_format(completion: str) -> bool:
    return completion.startswith(_START) and _END in completion and completion.count(_START) == 1
