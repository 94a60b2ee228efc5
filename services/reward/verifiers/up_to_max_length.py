"""A completion at most as long as the label demands."""

from typing import Any

from services.reward.common.text import label_number
from services.reward.common.verdict import Verdict
from services.reward.common.verifier import Verifier
from services.reward.verifiers.max_length import LengthOptions
from shoal.quantities import counted


def verify(completion: str, label: Any, options: LengthOptions = LengthOptions(), *, num_tokens: int) -> Verdict:
    """Compares the number of tokens with the label.

    Label: a number of tokens. Value: 1 up to that length, then 1 - (tokens - label) / `max_length_tokens`, which has
    no lower bound.
    """
    excess = num_tokens - label_number(label, "a number of tokens")
    return Verdict(1 - max(0.0, excess) / options.max_length_tokens, counted(num_tokens, "token"))


VERIFIER = Verifier(verify, values="1 at most, unbounded below", options=LengthOptions, reads="num_tokens")
