"""Constraints on the number of letters, words or sentences: `letters:*`, `count:*`, `length_constraints:*`."""

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


def letter_frequency(response: str, arguments: Arguments) -> bool:
    """Returns whether `letter`, in either case, occurs as often as `let_relation` and `let_frequency` require."""
    letter, holds = arguments.letter("letter"), arguments.holds("let_relation", "let_frequency")
    return holds(response.lower().count(letter.lower()))


def letters(response: str, arguments: Arguments) -> bool:
    """Returns whether the number of letters A to Z satisfies `relation` and `N`."""
    holds = arguments.holds("relation", "N")
    return holds(sum(1 for _ in _LETTER.finditer(response)))


def words(response: str, arguments: Arguments) -> bool:
    """Returns whether the number of words satisfies `relation` and `num_words`. "It's" counts as two words."""
    holds = arguments.holds("relation", "num_words")
    return holds(sum(1 for _ in _WORD.finditer(response)))


def sentences(response: str, arguments: Arguments) -> bool:
    """Returns whether the number of sentences satisfies `relation` and `num_sentences`."""
    holds = arguments.holds("relation", "num_sentences")
    return holds(len(punkt_sentences(response)))


def capital_words(response: str, arguments: Arguments) -> bool:
    """Returns whether the number of all-capital words satisfies `capital_relation` and `capital_frequency`."""
    holds = arguments.holds("capital_relation", "capital_frequency")
    return holds(sum(word.isupper() for word in treebank_words(response)))


def lowercase_words(response: str, arguments: Arguments) -> bool:
    """Returns whether there are at most `N` words in lowercase letters a to z.

    With `strict_wording`, each such word may occur at most `N` times instead.
    """
    maximum = arguments.number("N")
    found = Counter(match[0] for match in _LOWERCASE_WORD.finditer(response))
    counts = found.values() if arguments.strict_wording else [found.total()]
    return max(counts, default=0) <= maximum


def unique_words(response: str, arguments: Arguments) -> bool:
    """Returns whether no word occurs twice. Case matters, and punctuation marks count as words.

    With `strict_wording`, case is ignored and marks do not count.
    """
    found = treebank_words(response)
    if arguments.strict_wording:
        found = [word.lower() for word in found if _WORD.search(word)]
    return len(found) == len(set(found))


def composition(response: str, arguments: Arguments) -> bool:
    """Returns whether there are three paragraphs, separated by ***, of `n_sent` sentences of `n_words` words each.

    Punctuation marks count as words, and *** at the beginning or the end adds an empty paragraph; with
    `strict_wording`, neither is the case.
    """
    num_sentences, num_words = arguments.number("n_sent", minimum=1), arguments.number("n_words", minimum=1)
    paragraphs = starred_paragraphs(response) if arguments.strict_wording else split_at_stars(response)
    if paragraphs is None or len(paragraphs) != _NUM_COMPOSED:
        return False
    return all(
        len(found) == num_sentences
        and all(_num_words(sentence, strict=arguments.strict_wording) == num_words for sentence in found)
        for found in map(ruled_sentences, paragraphs)
    )


def _num_words(sentence: str, *, strict: bool) -> int:
    found = treebank_words(sentence)
    return sum(1 for word in found if _WORD.search(word)) if strict else len(found)
