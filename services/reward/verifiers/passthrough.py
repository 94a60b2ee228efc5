"""For prompts that an environment pays."""

from typing import Any

from services.reward.verdict import Verdict


def verify(completion: str, label: Any) -> Verdict:
    """Judges nothing. Label: anything. Value: 0."""
    return Verdict(0.0)
