"""A penalty for repeating oneself (arXiv:2502.03373, section 4)."""

from collections.abc import Sequence
from typing import Any

from services.reward.verdict import Verdict


def verify(
    completion: str, label: Any, *, token_ids: Sequence[int], ngram_size: int = 3, max_penalty: float = -1.0
) -> Verdict:
    """Counts n-grams of tokens that occurred before.

    Label: anything. Value: `max_penalty` times the share of repeated n-grams of `ngram_size` tokens; 0 for a
    completion shorter than one.
    """
    return Verdict(repetition_penalty(token_ids, ngram_size, max_penalty))


def repetition_penalty(token_ids: Sequence[int], ngram_size: int, max_penalty: float) -> float:
    """`max_penalty` to 0, as said above."""
    num_ngrams = len(token_ids) - ngram_size + 1
    if num_ngrams <= 0:
        return 0.0
    distinct = set(zip(*(token_ids[offset:] for offset in range(ngram_size)), strict=False))
    return max_penalty * (1 - len(distinct) / num_ngrams)
