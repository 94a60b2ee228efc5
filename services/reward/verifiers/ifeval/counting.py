"""Constraints on how many letters, words or sentences there are: `letters:*`, `count:*`, `length_constraints:*`."""

import re
from collections import Counter

from services.reward.verifiers.ifeval.arguments import Arguments
from services.reward.verifiers.ifeval.paragraphs import split_at_stars, starred_paragraphs
from services.reward.verifiers.ifeval.sentences import punkt_sentences, ruled_sentences
from services.reward.verifiers.ifeval.words import treebank_words

_WORD = re.compile(r"\w+")
_LETTER = re.compile(r"[A-Za-z]")
_LOWERCASE_WORD = re.compile(r"\b[a-z]+\b")
_NUM_COMPOSED = 3


def letter_frequency(response: str, given: Arguments) -> bool:
    """`letter`, in whatever case, is there as often as `let_relation` and `let_frequency` say."""
    letter, holds = given.letter("letter"), given.holds("let_relation", "let_frequency")
    return holds(response.lower().count(letter.lower()))


def letters(response: str, given: Arguments) -> bool:
    """There are as many letters A to Z as `relation` and `N` say."""
    holds = given.holds("relation", "N")
    return holds(sum(1 for _ in _LETTER.finditer(response)))


def words(response: str, given: Arguments) -> bool:
    """There are as many words as `relation` and `num_words` say. "It's" is two."""
    holds = given.holds("relation", "num_words")
    return holds(sum(1 for _ in _WORD.finditer(response)))


def sentences(response: str, given: Arguments) -> bool:
    """There are as many sentences as `relation` and `num_sentences` say."""
    holds = given.holds("relation", "num_sentences")
    return holds(len(punkt_sentences(response)))


def capital_words(response: str, given: Arguments) -> bool:
    """There are as many words all in capitals as `capital_relation` and `capital_frequency` say."""
    holds = given.holds("capital_relation", "capital_frequency")
    return holds(sum(word.isupper() for word in treebank_words(response)))


def lowercase_words(response: str, given: Arguments) -> bool:
    """There are at most `N` words in small letters a to z. Strictly worded: each of them at most `N` times."""
    most = given.number("N")
    found = Counter(match[0] for match in _LOWERCASE_WORD.finditer(response))
    counts = found.values() if given.strict_wording else [found.total()]
    return max(counts, default=0) <= most


def unique_words(response: str, given: Arguments) -> bool:
    """No word is there twice, case and all. Marks count as words; strictly worded they do not, and case is nothing."""
    found = treebank_words(response)
    if given.strict_wording:
        found = [word.lower() for word in found if _WORD.search(word)]
    return len(found) == len(set(found))


def composition(response: str, given: Arguments) -> bool:
    """Three paragraphs between *** of `n_sent` sentences of `n_words` words each.

    Marks count as words, and *** at the beginning or the end are too many; strictly worded neither is so.
    """
    num_sentences, num_words = given.number("n_sent", least=1), given.number("n_words", least=1)
    paragraphs = starred_paragraphs(response) if given.strict_wording else split_at_stars(response)
    if paragraphs is None or len(paragraphs) != _NUM_COMPOSED:
        return False
    return all(
        len(found) == num_sentences
        and all(_num_words(sentence, strict=given.strict_wording) == num_words for sentence in found)
        for found in map(ruled_sentences, paragraphs)
    )


def _num_words(sentence: str, *, strict: bool) -> int:
    found = treebank_words(sentence)
    return sum(1 for word in found if _WORD.search(word)) if strict else len(found)
