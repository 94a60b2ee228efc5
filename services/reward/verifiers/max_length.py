"""A completion as long as the label demands."""

from typing import Any

from pydantic import Field

from services.reward.common.text import label_number
from services.reward.common.verdict import Verdict
from services.reward.common.verifier import Verifier
from shoal.config.tables.section import Section
from shoal.quantities import counted


class LengthOptions(Section):
    max_length_tokens: int = Field(default=32768, ge=1)
    """Number of tokens of difference that lower the value by 1 (open-instruct's `max_length_verifier_max_length`)."""


def verify(completion: str, label: Any, options: LengthOptions = LengthOptions(), *, num_tokens: int) -> Verdict:
    """Compares the number of tokens with the label.

    Label: a number of tokens. Value: 1 - |tokens - label| / `max_length_tokens`, which has no lower bound.
    """
    wanted = label_number(label, "a number of tokens")
    return Verdict(1 - abs(num_tokens - wanted) / options.max_length_tokens, counted(num_tokens, "token"))


VERIFIER = Verifier(
    verify, values="1 at most, unbounded below", best="measure", options=LengthOptions, reads="num_tokens"
)
