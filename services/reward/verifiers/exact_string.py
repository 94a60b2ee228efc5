"""A completion that is the label, letter for letter."""

from typing import Any

from services.reward.common.verdict import Verdict, acceptable_texts
from services.reward.common.verifier import Verifier


def verify(completion: str, label: Any) -> Verdict:
    """Compares the whole completion with the label.

    Label: a text, or a list of accepted texts. Value: 1 if they are equal, ignoring white space around them, else 0.
    """
    answer = completion.strip()
    return Verdict(float(any(answer == text.strip() for text in acceptable_texts(label))), answer, answer)


VERIFIER = Verifier(verify, values="1 or 0", same_answers="the same text")
