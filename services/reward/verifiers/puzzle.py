"""A whole answer that is the label, after normalization."""

from typing import Any

from services.reward.text import same_words, without_thinking
from services.reward.verdict import Verdict, acceptable_texts


def verify(completion: str, label: Any) -> Verdict:
    """Compares all that follows the last </think> with the label.

    Case, ASCII punctuation, articles, white space and answer tags do not count. Label: a text or number, or a list
    of those of which any will do. Value: 1 if they are equal, else 0.
    """
    answer = without_thinking(completion)
    correct = any(same_words(answer, text) for text in acceptable_texts(label))
    return Verdict(float(correct), answer)
