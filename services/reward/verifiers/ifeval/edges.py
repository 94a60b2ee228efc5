"""Constraints on how it begins and ends: `startend:*`, `first_word:*`, `last_word:*`."""

import re

from services.reward.verifiers.ifeval.arguments import Arguments
from services.reward.verifiers.ifeval.sentences import ruled_sentences

_MARK = re.compile(r"[^\w\s]")


def end_phrase(response: str, given: Arguments) -> bool:
    """It ends with `end_phrase`, case, blanks and double quotes around it aside."""
    phrase = given.text("end_phrase").lower()
    return response.strip().strip('"').lower().endswith(phrase)


def quotation(response: str, given: Arguments) -> bool:
    """It begins and ends with a double quote."""
    text = response.strip()
    return len(text) > 1 and text.startswith('"') and text.endswith('"')


def first_word_of_sentences(response: str, given: Arguments) -> bool:
    """Each sentence begins with `first_word`, case aside; a mark that touches it belongs to the word.

    Strictly worded, marks do not matter.
    """
    return all(_begins(sentence, given) for sentence in _sentences(response, given, "first_word"))


def first_word(response: str, given: Arguments) -> bool:
    """It begins with `first_word`, case aside; a mark that touches it belongs to the word.

    Strictly worded, marks do not matter.
    """
    given.text("first_word")
    return _begins(response, given)


def last_word_of_sentences(response: str, given: Arguments) -> bool:
    """Each sentence ends with `last_word`, case and marks aside."""
    return all(_ends(sentence, given) for sentence in _sentences(response, given, "last_word"))


def last_word(response: str, given: Arguments) -> bool:
    """It ends with `last_word`, case and marks aside."""
    given.text("last_word")
    return _ends(response, given)


def _sentences(response: str, given: Arguments, needed: str) -> list[str]:
    given.text(needed)
    return ruled_sentences(response)


def _begins(text: str, given: Arguments) -> bool:
    words = text.split(maxsplit=1)
    if not words:
        return False
    word, wanted = words[0].lower(), given.text("first_word").lower()
    return word == wanted or (given.strict_wording and _MARK.sub("", word) == _MARK.sub("", wanted))


def _ends(text: str, given: Arguments) -> bool:
    words = text.rsplit(maxsplit=1)
    return bool(words) and _MARK.sub("", words[-1]).lower() == given.text("last_word").lower()
