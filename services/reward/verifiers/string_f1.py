"""The words that an answer shares with the label."""

from typing import Any

from services.reward.common.text import token_f1, without_tags
from services.reward.common.verdict import Verdict, acceptable_texts
from services.reward.common.verifier import Verifier


def verify(completion: str, label: Any) -> Verdict:
    """Compares the words of the answer with the label's words.

    Ignores case, ASCII punctuation, articles and answer tags. Label: a text or number, or a list of texts and numbers.
    Value: the best F1 of the words with any of them, 0 to 1.
    """
    answer = without_tags(completion)
    return Verdict(max(token_f1(answer, text) for text in acceptable_texts(label)), answer)


VERIFIER = Verifier(verify, values="0 to 1")
