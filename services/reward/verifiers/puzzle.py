"""A whole answer that equals the label after normalization."""

from typing import Any

from services.reward.common.text import without_tags, words_verdict
from services.reward.common.verdict import Verdict, acceptable_texts
from services.reward.common.verifier import Verifier


def verify(completion: str, label: Any) -> Verdict:
    """Compares the whole answer with the label.

    Ignores case, ASCII punctuation, articles, white space and answer tags. Label: an accepted text or number, or a
    list of these. Value: 1 if they are equal, else 0.
    """
    return words_verdict(without_tags(completion), acceptable_texts(label))


VERIFIER = Verifier(verify, values="1 or 0", same_answers="the same words")
