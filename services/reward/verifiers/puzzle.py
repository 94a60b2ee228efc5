"""A whole answer that equals the label after normalization."""

from typing import Any

from services.reward.common.text import same_words, without_tags, word_form
from services.reward.common.verdict import Verdict, acceptable_texts
from services.reward.common.verifier import Verifier


def verify(completion: str, label: Any) -> Verdict:
    """Compares the whole answer with the label.

    Ignores case, ASCII punctuation, articles, white space and answer tags. Label: a text or number, or a list of
    accepted ones. Value: 1 if they are equal, else 0.
    """
    answer = without_tags(completion)
    correct = any(same_words(answer, text) for text in acceptable_texts(label))
    return Verdict(float(correct), answer, word_form(answer))


VERIFIER = Verifier(verify, values="1 or 0", same_answers="the same words")
