"""Canonical forms: equal answers have the same form, so that the answers to a question can be counted."""

import re

from services.reward.common.text import normalized

_PLAIN_NUMBER = re.compile(r"([-+]?)([0-9]*)(?:\.([0-9]*))?")


def number_form(number: str) -> str:
    """Returns a decimal number without meaningless zeros, and any other text unchanged. A plus sign stays."""
    found = _PLAIN_NUMBER.fullmatch(number)
    if not found or not (found[2] or found[3]):
        return number
    fraction = (found[3] or "").rstrip("0")
    value = (found[2].lstrip("0") or "0") + (f".{fraction}" if fraction else "")
    return value if value == "0" else found[1] + value


def word_form(answer: str) -> str:
    """Returns the normalized words of an answer, as `text.same_words` compares them."""
    return normalized(answer) or answer.strip().lower()
