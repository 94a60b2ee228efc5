"""The last number of a completion, as GSM8K asks for it (arXiv:2110.14168)."""

import re
from decimal import Decimal
from typing import Any

from services.reward.verdict import Unscorable, Verdict, acceptable_texts

_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")
_SOLUTION_MARK = "####"


def verify(completion: str, label: Any) -> Verdict:
    """Compares the last number of the completion with the label.

    Label: a number, as text or number; a whole GSM8K solution, of which the part after "####" counts; or a list
    of those, of which any will do. Value: 1 if the numbers are equal, else 0. Thousands separators are dropped
    and 5.0 equals 5. A minus sign belongs to the number that it touches. A number with a plus sign is the tail
    of a sum that was not worked out, and equals nothing.
    """
    wanted = [_label_number(text) for text in acceptable_texts(label)]
    numbers = _NUMBER.findall(_THOUSANDS.sub("", completion))
    if not numbers:
        return Verdict(0.0, "no number")
    last = numbers[-1]
    correct = not last.startswith("+") and Decimal(last) in wanted
    return Verdict(float(correct), last)


def _label_number(text: str) -> Decimal:
    answer = _THOUSANDS.sub("", text.rpartition(_SOLUTION_MARK)[2].strip()).removeprefix("$")
    if not _NUMBER.fullmatch(answer):
        raise Unscorable(f"the label holds no plain number: {answer!r:.80}")
    return Decimal(answer)
