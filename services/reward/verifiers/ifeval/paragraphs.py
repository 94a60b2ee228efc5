"""Constraints on paragraphs: `paragraphs:*`, `length_constraints:number_paragraphs`, `...:nth_paragraph_first_word`."""

import re
from itertools import takewhile

from services.reward.verifiers.ifeval.arguments import Arguments

_STARS = re.compile(r"\s?\*\*\*\s?")
_FIRST_WORD_ENDS = frozenset(".,?!'\"")


def split_at_stars(text: str) -> list[str]:
    """What stands between ***, blank or not."""
    return _STARS.split(text)


def starred_paragraphs(text: str) -> list[str] | None:
    """What stands between ***; see `_without_empty`."""
    return _without_empty(split_at_stars(text))


def _without_empty(parts: list[str]) -> list[str] | None:
    """The parts without a blank first and last one; None where one in between is blank."""
    blank = [position for position, part in enumerate(parts) if not part.strip()]
    if any(0 < position < len(parts) - 1 for position in blank):
        return None
    return [part for part in parts if part.strip()]


def starred(response: str, given: Arguments) -> bool:
    """There are `num_paragraphs` between ***."""
    wanted = given.number("num_paragraphs")
    found = starred_paragraphs(response)
    return found is not None and len(found) == wanted


def two_starred(response: str, given: Arguments) -> bool:
    """There are two, between ***."""
    return len(starred_paragraphs(response) or ()) == 2


def two_spaced(response: str, given: Arguments) -> bool:
    """There are two, between blank lines."""
    return len(_without_empty(response.split("\n\n")) or ()) == 2


def nth_first_word(response: str, given: Arguments) -> bool:
    """There are `num_paragraphs` between blank lines, and number `nth_paragraph`, from 1, begins with `first_word`."""
    wanted, nth = given.number("num_paragraphs", least=1), given.number("nth_paragraph", least=1)
    first_word = given.exact_text("first_word").lower()
    if nth > wanted:
        raise given.invalid("nth_paragraph", f"must be at most num_paragraphs, {wanted}")
    paragraphs = response.split("\n\n")
    words = paragraphs[nth - 1].split(maxsplit=1) if nth <= len(paragraphs) else []
    if sum(1 for paragraph in paragraphs if paragraph.strip()) != wanted or not words:
        return False
    opening = words[0].lstrip("'").lstrip('"').lower()
    return "".join(takewhile(lambda character: character not in _FIRST_WORD_ENDS, opening)) == first_word
