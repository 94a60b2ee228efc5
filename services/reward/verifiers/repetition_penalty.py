"""A penalty for repeated n-grams (arXiv:2502.03373, section 4)."""

from collections.abc import Hashable, Sequence
from typing import Any

from pydantic import Field

from services.reward.common.verdict import Verdict
from services.reward.common.verifier import Verifier
from shoal.config.tables.section import Section


class RepetitionOptions(Section):
    ngram_size: int = Field(default=3, ge=1)
    """Length of an n-gram, in tokens."""
    max_penalty: float = Field(default=-1.0, le=0)
    """Value if every n-gram is a repetition."""


def verify(
    completion: str, label: Any, options: RepetitionOptions = RepetitionOptions(), *, token_ids: Sequence[int]
) -> Verdict:
    """Counts the n-grams of tokens that occurred before.

    Label: anything. Value: `max_penalty` times the share of repeated n-grams of `ngram_size` tokens; 0 for a
    completion shorter than an n-gram.
    """
    return Verdict(repetition_penalty(token_ids, options.ngram_size, options.max_penalty))


def repetition_penalty(units: Sequence[Hashable], ngram_size: int, max_penalty: float) -> float:
    """Returns the penalty that `verify` documents; `units` may be words too."""
    num_ngrams = len(units) - ngram_size + 1
    if num_ngrams <= 0:
        return 0.0
    distinct = set(zip(*(units[offset:] for offset in range(ngram_size)), strict=False))
    return max_penalty * (1 - len(distinct) / num_ngrams)


VERIFIER = Verifier(verify, values="`max_penalty` to 0", best="zero", options=RepetitionOptions, reads="token_ids")
