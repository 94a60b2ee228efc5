"""Constraints on the beginning and the end: `startend:*`, `first_word:*`, `last_word:*`."""

import re

from services.reward.verifiers.ifeval.arguments import Arguments
from services.reward.verifiers.ifeval.sentences import ruled_sentences

_MARK = re.compile(r"[^\w\s]")


def end_phrase(response: str, arguments: Arguments) -> bool:
    """Returns whether the response ends with `end_phrase`, ignoring case, outer white space and outer double quotes."""
    phrase = arguments.text("end_phrase").lower()
    return response.strip().strip('"').lower().endswith(phrase)


def quotation(response: str, arguments: Arguments) -> bool:
    """Returns whether the response begins and ends with a double quote."""
    text = response.strip()
    return len(text) > 1 and text.startswith('"') and text.endswith('"')


def first_word_of_sentences(response: str, arguments: Arguments) -> bool:
    """Returns whether each sentence begins with `first_word`, ignoring case.

    A punctuation mark that touches the word is part of it; with `strict_wording`, marks are ignored.
    """
    return all(_begins(sentence, arguments) for sentence in _sentences(response, arguments, "first_word"))


def first_word(response: str, arguments: Arguments) -> bool:
    """Returns whether the response begins with `first_word`, ignoring case.

    A punctuation mark that touches the word is part of it; with `strict_wording`, marks are ignored.
    """
    arguments.text("first_word")
    return _begins(response, arguments)


def last_word_of_sentences(response: str, arguments: Arguments) -> bool:
    """Returns whether each sentence ends with `last_word`, ignoring case and punctuation marks."""
    return all(_ends(sentence, arguments) for sentence in _sentences(response, arguments, "last_word"))


def last_word(response: str, arguments: Arguments) -> bool:
    """Returns whether the response ends with `last_word`, ignoring case and punctuation marks."""
    arguments.text("last_word")
    return _ends(response, arguments)


def _sentences(response: str, arguments: Arguments, needed: str) -> list[str]:
    arguments.text(needed)
    return ruled_sentences(response)


def _begins(text: str, arguments: Arguments) -> bool:
    words = text.split(maxsplit=1)
    if not words:
        return False
    word, wanted = words[0].lower(), arguments.text("first_word").lower()
    return word == wanted or (arguments.strict_wording and _MARK.sub("", word) == _MARK.sub("", wanted))


def _ends(text: str, arguments: Arguments) -> bool:
    words = text.rsplit(maxsplit=1)
    return bool(words) and _MARK.sub("", words[-1]).lower() == arguments.text("last_word").lower()
