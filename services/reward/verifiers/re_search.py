"""The first answer of a search agent (Search-R1, arXiv:2503.09516)."""

import re
from typing import Any

from services.reward.common.text import listed_texts, words_verdict
from services.reward.common.verdict import Verdict
from services.reward.common.verifier import Verifier

_START, _END = re.compile("<finish>", re.IGNORECASE), re.compile("</finish>", re.IGNORECASE)


def verify(completion: str, label: Any) -> Verdict:
    """Compares the first <finish>...</finish>, in any case, with the label.

    Ignores case, ASCII punctuation, articles and white space. Label: an accepted text or number, or a list of these,
    also as JSON text. Value: 1 if they are equal, else 0; 0 without tags.
    """
    wanted = listed_texts(label)
    start = _START.search(completion)
    end = _END.search(completion, start.end()) if start else None
    if start is None or end is None:
        return Verdict(0.0, "no <finish>...</finish>", answer="")
    return words_verdict(completion[start.end() : end.start()].strip(), wanted)


VERIFIER = Verifier(verify, values="1 or 0", same_answers="the same words")
