"""Constraints on paragraphs: `paragraphs:*`, `length_constraints:number_paragraphs`, `...:nth_paragraph_first_word`."""

import re
from itertools import takewhile

from services.reward.verifiers.ifeval.arguments import Arguments

_STARS = re.compile(r"\s?\*\*\*\s?")
_FIRST_WORD_ENDS = frozenset(".,?!'\"")


def split_at_stars(text: str) -> list[str]:
    """Returns the texts between ***, blank or not."""
    return _STARS.split(text)


def starred_paragraphs(text: str) -> list[str] | None:
    """Returns the texts between ***, without a blank first and last; None if another is blank."""
    return _without_empty(split_at_stars(text))


def _without_empty(parts: list[str]) -> list[str] | None:
    """Drops a blank first and last part; returns None if a part in between is blank."""
    blank = [index for index, part in enumerate(parts) if not part.strip()]
    if any(0 < index < len(parts) - 1 for index in blank):
        return None
    return [part for part in parts if part.strip()]


def starred(response: str, arguments: Arguments) -> bool:
    """Returns whether there are `num_paragraphs` paragraphs, separated by ***."""
    wanted = arguments.number("num_paragraphs")
    found = starred_paragraphs(response)
    return found is not None and len(found) == wanted


def two_starred(response: str, arguments: Arguments) -> bool:
    """Returns whether there are two paragraphs, separated by ***."""
    return len(starred_paragraphs(response) or ()) == 2


def two_spaced(response: str, arguments: Arguments) -> bool:
    """Returns whether there are two paragraphs, separated by blank lines."""
    return len(_without_empty(response.split("\n\n")) or ()) == 2


def nth_first_word(response: str, arguments: Arguments) -> bool:
    """Returns whether there are `num_paragraphs` paragraphs and paragraph `nth_paragraph` begins with `first_word`.

    Blank lines separate paragraphs, which are counted from 1.
    """
    wanted, nth = arguments.number("num_paragraphs", minimum=1), arguments.number("nth_paragraph", minimum=1)
    first_word = arguments.exact_text("first_word").lower()
    if nth > wanted:
        raise arguments.invalid("nth_paragraph", f"must be at most num_paragraphs, {wanted}")
    paragraphs = response.split("\n\n")
    words = paragraphs[nth - 1].split(maxsplit=1) if nth <= len(paragraphs) else []
    if sum(1 for paragraph in paragraphs if paragraph.strip()) != wanted or not words:
        return False
    opening = words[0].lstrip("'").lstrip('"').lower()
    return "".join(takewhile(lambda character: character not in _FIRST_WORD_ENDS, opening)) == first_word
