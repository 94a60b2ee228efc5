"""The words of a search agent's last answer (ReSearch, arXiv:2503.19470)."""

from typing import Any

from services.reward.common.text import listed_texts, token_f1
from services.reward.common.verdict import Verdict
from services.reward.common.verifier import Verifier

_START, _END = "<finish>", "</finish>"
_MIN_VALUE = 0.1


def verify(completion: str, label: Any) -> Verdict:
    """Compares the words of the last <finish>...</finish> with the label's words.

    Ignores case, ASCII punctuation and articles. If one tag is missing, the answer extends to the beginning or the end
    of the text. Label: a text or number, or a list of these, also as JSON text. Value: the best F1 of the words with
    any of them, 0 to 1, but 0.1 instead of 0 if the answer is not empty; 0 without tags or for an empty answer.
    """
    wanted = listed_texts(label)
    if _START not in completion and _END not in completion:
        return Verdict(0.0, "no <finish>...</finish>")
    answer = completion.rpartition(_START)[2].partition(_END)[0].strip()
    if not answer:
        return Verdict(0.0, "an empty answer")
    return Verdict(max(token_f1(answer, text) for text in wanted) or _MIN_VALUE, answer)


VERIFIER = Verifier(verify, values="0 to 1")
