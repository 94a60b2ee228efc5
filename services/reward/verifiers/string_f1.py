"""Words that an answer shares with the label."""

from typing import Any

from services.reward.text import token_f1, without_thinking
from services.reward.verdict import Verdict, acceptable_texts


def verify(completion: str, label: Any) -> Verdict:
    """Compares the words after the last </think> with those of the label.

    Case, ASCII punctuation and articles do not count; answer tags are dropped. Label: a text or number, or a list
    of those of which the best counts. Value: 0 to 1, the F1 of the words.
    """
    answer = without_thinking(completion)
    return Verdict(max(token_f1(answer, text) for text in acceptable_texts(label)), answer)
