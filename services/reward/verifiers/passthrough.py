"""A constant 0, for prompts whose rewards come from an environment."""

from typing import Any

from services.reward.common.verdict import Verdict
from services.reward.common.verifier import Verifier


def verify(completion: str, label: Any) -> Verdict:
    """Judges nothing. Label: anything. Value: 0."""
    return Verdict(0.0)


VERIFIER = Verifier(verify, values="0", best="zero", reads="completion")
