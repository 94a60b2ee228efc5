"""Constraints on the number of letters, words, sentences or paragraphs: `letters:*`, `count:*`, `paragraphs:*`,
`length_constraints:*`."""

import re
from collections import Counter
from itertools import takewhile

from services.reward.verifiers.ifeval.arguments import Arguments
from services.reward.verifiers.ifeval.sentences import punkt_sentences, ruled_sentences
from services.reward.verifiers.ifeval.words import treebank_words

_WORD = re.compile(r"\w+")
_LETTER = re.compile(r"[A-Za-z]")
_LOWERCASE_WORD = re.compile(r"\b[a-z]+\b")
_NUM_COMPOSED = 3
_STARS = re.compile(r"\s?\*\*\*\s?")
_FIRST_WORD_ENDS = frozenset(".,?!'\"")


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
    paragraphs = _starred_paragraphs(response) if arguments.strict_wording else _STARS.split(response)
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


def _starred_paragraphs(text: str) -> list[str] | None:
    """Returns the texts between ***, without a blank first and last; None if another is blank."""
    return _without_empty(_STARS.split(text))


def _without_empty(parts: list[str]) -> list[str] | None:
    """Drops a blank first and last part; returns None if a part in between is blank."""
    blank = [index for index, part in enumerate(parts) if not part.strip()]
    if any(0 < index < len(parts) - 1 for index in blank):
        return None
    return [part for part in parts if part.strip()]


def starred(response: str, arguments: Arguments) -> bool:
    """Returns whether there are `num_paragraphs` paragraphs, separated by ***."""
    wanted = arguments.number("num_paragraphs")
    found = _starred_paragraphs(response)
    return found is not None and len(found) == wanted


def two_starred(response: str, arguments: Arguments) -> bool:
    """Returns whether there are two paragraphs, separated by ***."""
    return len(_starred_paragraphs(response) or ()) == 2


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
