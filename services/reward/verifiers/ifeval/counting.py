"""Constraints on the number of letters, words, sentences or paragraphs: `letters:*`, `count:*`, `paragraphs:*`,
`length_constraints:*`."""

import re
from collections import Counter
from collections.abc import Callable
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


def _counted(count: Callable[[str], int], relation: str, number: str) -> Callable[[str, Arguments], bool]:
    """Returns the constraint that a count of a response satisfies two kwargs, a relation and a number."""
    return lambda response, arguments: arguments.holds(relation, number)(count(response))


letters = _counted(lambda text: sum(1 for _ in _LETTER.finditer(text)), "relation", "N")
words = _counted(lambda text: sum(1 for _ in _WORD.finditer(text)), "relation", "num_words")
"""Counts "It's" as two words."""
sentences = _counted(lambda text: len(punkt_sentences(text)), "relation", "num_sentences")
capital_words = _counted(
    lambda text: sum(word.isupper() for word in treebank_words(text)), "capital_relation", "capital_frequency"
)


def lowercase_words(response: str, arguments: Arguments) -> bool:
    """Returns whether there are at most `N` words in lowercase letters a to z. With `strict_wording`, returns instead
    whether each of these words occurs at most `N` times."""
    maximum = arguments.number("N")
    found = Counter(match[0] for match in _LOWERCASE_WORD.finditer(response))
    counts = found.values() if arguments.strict_wording else [found.total()]
    return max(counts, default=0) <= maximum


def unique_words(response: str, arguments: Arguments) -> bool:
    """Returns whether no word occurs twice. Case matters, and punctuation marks count as words, unless
    `strict_wording`."""
    found = treebank_words(response)
    if arguments.strict_wording:
        found = [word.lower() for word in found if _WORD.search(word)]
    return len(found) == len(set(found))


def composition(response: str, arguments: Arguments) -> bool:
    """Returns whether there are three paragraphs, separated by ***, of `n_sent` sentences of `n_words` words each.
    Punctuation marks count as words, and *** at the beginning or the end adds an empty paragraph, unless
    `strict_wording`."""
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
    return _without_empty(_STARS.split(text))


def _without_empty(parts: list[str]) -> list[str] | None:
    """Drops a blank first and last part; returns None if a part in between is blank."""
    if not all(part.strip() for part in parts[1:-1]):
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
    """Returns whether there are `num_paragraphs` paragraphs, separated by blank lines, and paragraph `nth_paragraph`,
    counted from 1, begins with `first_word`."""
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
