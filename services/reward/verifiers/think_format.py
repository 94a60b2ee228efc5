"""Thoughts in tags at the very start of the completion."""

from typing import Any

from services.reward.common.verdict import Verdict
from services.reward.common.verifier import Verifier

_START, _END = "<think>", "</think>"


def verify(completion: str, label: Any) -> Verdict:
    """Looks for one pair of <think>...</think> that begins the completion, with no second <think> after it.

    For models that write <think> themselves. Label: anything. Value: 1 if this is found, else 0.
    """
    return Verdict(float(has_think_format(completion)))


def has_think_format(completion: str) -> bool:
    return completion.startswith(_START) and _END in completion and completion.count(_START) == 1


VERIFIER = Verifier(verify, values="1 or 0", reads="completion")
