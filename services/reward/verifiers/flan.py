"""An answer announced in FLAN's words (arXiv:2210.11416)."""

from typing import Any

from services.reward.common.text import same_words, word_form
from services.reward.common.verdict import Verdict, acceptable_texts
from services.reward.common.verifier import Verifier

_MARK = "The answer is: "


def verify(completion: str, label: Any) -> Verdict:
    """Compares the text after the last "The answer is: ", or the whole completion without one, with the label.

    Ignores case, ASCII punctuation, articles and white space. Label: a text or number, or a list of accepted ones.
    Value: 1 if they are equal, else 0.
    """
    answer = completion.rpartition(_MARK)[2].strip()
    correct = any(same_words(answer, text) for text in acceptable_texts(label))
    return Verdict(float(correct), answer, word_form(answer))


VERIFIER = Verifier(verify, values="1 or 0", same_answers="the same words")
