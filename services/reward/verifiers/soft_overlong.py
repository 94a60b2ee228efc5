"""DAPO's penalty for completions near the length limit (arXiv:2503.14476, section 3.4)."""

from typing import Any

from pydantic import Field

from services.reward.common.verdict import Verdict
from services.reward.common.verifier import Verifier
from shoal.config.tables.section import Section
from shoal.quantities import counted


class SoftOverlongOptions(Section):
    max_length_tokens: int = Field(default=4096, ge=1)
    """Length from which the full penalty applies."""
    soft_cache_tokens: int = Field(default=1024, ge=0)
    """Number of tokens before `max_length_tokens` over which the penalty grows."""


def verify(
    completion: str, label: Any, options: SoftOverlongOptions = SoftOverlongOptions(), *, num_tokens: int
) -> Verdict:
    """Compares the number of tokens with `max_length_tokens`.

    Label: anything. Value: 0 up to `soft_cache_tokens` below that length, falling linearly from there to -1 at that
    length, and -1 beyond.
    """
    penalty = soft_overlong_punishment(num_tokens, options.max_length_tokens, options.soft_cache_tokens)
    return Verdict(penalty, counted(num_tokens, "token"))


def soft_overlong_punishment(num_tokens: int, max_length_tokens: int, soft_cache_tokens: int) -> float:
    """Returns the penalty that `verify` documents."""
    if num_tokens > max_length_tokens:
        return -1.0
    excess = num_tokens - (max_length_tokens - soft_cache_tokens)
    return -excess / soft_cache_tokens if excess > 0 else 0.0


VERIFIER = Verifier(verify, values="-1 to 0", best="zero", options=SoftOverlongOptions, reads="num_tokens")
