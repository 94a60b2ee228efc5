"""A completion that is the label, letter for letter."""

from typing import Any

from services.reward.verdict import Verdict, acceptable_texts


def verify(completion: str, label: Any) -> Verdict:
    """Compares the whole completion with the label.

    Label: a text, or a list of texts of which any will do. Value: 1 if they are equal but for white space around
    them, else 0.
    """
    answer = completion.strip()
    return Verdict(float(any(answer == text.strip() for text in acceptable_texts(label))), answer)
