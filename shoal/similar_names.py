"""Finds the known names that an unknown name may mean."""

import difflib
from collections.abc import Iterable

_MAX_COMPARED = 200
"""The number of characters of a name that are compared with other names. The comparison takes quadratic time."""
_MAX_LONGER = 3
"""The most names to which one word or abbreviation may refer. A word that fits more names is no useful hint."""
_MIN_PREFIX = 3


def similar_names(name: str, known: Iterable[str], *, most: int = 3, likeness: float = 0.6) -> list[str]:
    """Returns the known names that may be meant, best first. Names with the words of the given name are preferred, then
    names that it abbreviates ("lr" for learning_rate), then the most similar names. The result has at most `most`
    names, with a similarity of at least `likeness` (0 to 1)."""
    name, known = name[:_MAX_COMPARED], list(dict.fromkeys(known))
    for shortens in (_has_words, _has_initials, _begins, _abbreviates):
        longer = [one for one in known if shortens(name, one)]
        if 0 < len(longer) <= _MAX_LONGER:
            return sorted(longer, key=lambda one: not one.startswith(name))
    return difflib.get_close_matches(name, known, n=most, cutoff=likeness)


def _has_words(short: str, name: str) -> bool:
    return f"_{short}_" in f"_{name}_"


def _has_initials(short: str, name: str) -> bool:
    words = name.split("_")
    return len(words) > 1 and short == "".join(word[:1] for word in words)


def _begins(short: str, name: str) -> bool:
    return len(short) >= _MIN_PREFIX and name.startswith(short)


def _abbreviates(short: str, name: str) -> bool:
    """Returns whether each word of `short` consists of letters of a word of the name, in their order and from the first
    letter on. The words must follow one another as in the name."""
    words = iter(name.split("_"))
    return len(short) > 1 and all(any(_has_letters(part, word) for word in words) for part in short.split("_"))


def _has_letters(part: str, word: str) -> bool:
    letters = iter(word)
    return part[:1] == word[:1] != "" and all(letter in letters for letter in part)
