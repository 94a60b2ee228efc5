"""An answer announced in FLAN's words (arXiv:2210.11416)."""

from typing import Any

from services.reward.common.text import words_verdict
from services.reward.common.verdict import Verdict, acceptable_texts
from services.reward.common.verifier import Verifier

_MARK = "The answer is: "


def verify(completion: str, label: Any) -> Verdict:
    """Compares the text after the last "The answer is: ", or the whole completion without one, with the label.

    Ignores case, ASCII punctuation, articles and white space. Label: an accepted text or number, or a list of these.
    Value: 1 if they are equal, else 0.
    """
    return words_verdict(completion.rpartition(_MARK)[2].strip(), acceptable_texts(label))


VERIFIER = Verifier(verify, values="1 or 0", same_answers="the same words")
