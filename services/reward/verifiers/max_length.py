"""A completion as long as the label says."""

from typing import Any

from services.reward.text import label_number
from services.reward.verdict import Verdict


def verify(completion: str, label: Any, *, num_tokens: int, max_length_tokens: int = 32768) -> Verdict:
    """Compares the number of tokens with the label.

    Label: a number of tokens. Value: 1 - |tokens - label| / `max_length_tokens`; 1 at most, and below 0 without
    end.
    """
    wanted = label_number(label, "a number of tokens")
    return Verdict(1 - abs(num_tokens - wanted) / max_length_tokens, f"{num_tokens} tokens")
