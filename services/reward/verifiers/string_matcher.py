"""An answer in tags that is the label, after normalization."""

from typing import Any

from services.reward.text import last_between, same_words
from services.reward.verdict import Verdict, acceptable_texts


def verify(completion: str, label: Any) -> Verdict:
    """Compares the last <answer>...</answer> with the label.

    Case, ASCII punctuation, articles and white space do not count. Label: a text or number, or a list of those of
    which any will do. Value: 1 if they are equal, else 0; 0 without both tags.
    """
    wanted = acceptable_texts(label)
    answer = last_between(completion, "<answer>", "</answer>")
    if answer is None:
        return Verdict(0.0, "no <answer>...</answer>")
    return Verdict(float(any(same_words(answer, text) for text in wanted)), answer.strip())
