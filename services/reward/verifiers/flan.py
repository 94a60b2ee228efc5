"""An answer announced as FLAN does it (arXiv:2210.11416)."""

from typing import Any

from services.reward.text import same_words
from services.reward.verdict import Verdict, acceptable_texts

_MARK = "The answer is: "


def verify(completion: str, label: Any) -> Verdict:
    """Compares what follows the last "The answer is: ", or everything without it, with the label.

    Case, ASCII punctuation, articles and white space do not count. Label: a text or number, or a list of those of
    which any will do. Value: 1 if they are equal, else 0.
    """
    answer = completion.rpartition(_MARK)[2].strip()
    return Verdict(float(any(same_words(answer, text) for text in acceptable_texts(label))), answer)
