"""Words of a search agent's last answer (ReSearch, arXiv:2503.19470)."""

from typing import Any

from services.reward.text import listed_texts, token_f1
from services.reward.verdict import Verdict

_START, _END = "<finish>", "</finish>"
_FOR_TRYING = 0.1


def verify(completion: str, label: Any) -> Verdict:
    """Compares the words of the last <finish>...</finish> with those of the label.

    Case, ASCII punctuation and articles do not count. A tag that is missing, of the two, is taken to stand at that
    end of the text. Label: a text or number, or a list of those, also as JSON text, of which the best counts.
    Value: the F1 of the words, 0 to 1, and 0.1 in place of 0 when there is an answer at all; 0 without either tag
    or with nothing in between.
    """
    wanted = listed_texts(label)
    if _START not in completion and _END not in completion:
        return Verdict(0.0, "no <finish>...</finish>")
    answer = completion.rpartition(_START)[2].partition(_END)[0].strip()
    if not answer:
        return Verdict(0.0, "an empty answer")
    return Verdict(max(token_f1(answer, text) for text in wanted) or _FOR_TRYING, answer)
