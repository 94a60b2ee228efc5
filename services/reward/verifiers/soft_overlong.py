"""DAPO's penalty for completions that near the length limit (arXiv:2503.14476, section 3.4)."""

from typing import Any

from services.reward.verdict import Verdict


def verify(
    completion: str, label: Any, *, num_tokens: int, max_length_tokens: int = 4096, soft_cache_tokens: int = 1024
) -> Verdict:
    """Measures the completion against `max_length_tokens`.

    Label: anything. Value: 0 up to `soft_cache_tokens` below that length, from there falling in a line to -1 at
    it, and -1 beyond.
    """
    penalty = soft_overlong_punishment(num_tokens, max_length_tokens, soft_cache_tokens)
    return Verdict(penalty, f"{num_tokens} tokens")


def soft_overlong_punishment(num_tokens: int, max_length_tokens: int, soft_cache_tokens: int) -> float:
    """0 to -1, as said above."""
    if num_tokens > max_length_tokens:
        return -1.0
    excess = num_tokens - (max_length_tokens - soft_cache_tokens)
    return -excess / soft_cache_tokens if excess > 0 else 0.0
