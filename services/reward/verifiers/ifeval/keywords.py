"""Constraints on single words: `keywords:*` and `count:count_increment_word`."""

import re
from itertools import pairwise

from services.reward.verifiers.ifeval.arguments import Arguments
from services.reward.verifiers.ifeval.sentences import ruled_sentences
from services.reward.verifiers.ifeval.words import treebank_words

_MARKS = "".join(chr(code) for code in range(33, 127) if not chr(code).isalnum())


def existence(response: str, given: Arguments) -> bool:
    """Each of `keywords` is found."""
    patterns = [given.pattern("keywords", keyword) for keyword in given.texts("keywords")]
    return all(pattern.search(response) for pattern in patterns)


def frequency(response: str, given: Arguments) -> bool:
    """`keyword` is found as often as `relation` and `frequency` say."""
    keyword, holds = given.keyword("keyword"), given.holds("relation", "frequency")
    return holds(_count(keyword, response))


def once(response: str, given: Arguments) -> bool:
    """`keyword` is found exactly once."""
    return _count(given.keyword("keyword"), response) == 1


def once_and_twice(response: str, given: Arguments) -> bool:
    """`keyword1` is found exactly once and `keyword2` exactly twice."""
    first, second = given.keyword("keyword1"), given.keyword("keyword2")
    return _count(first, response) == 1 and _count(second, response) == 2


def forbidden(response: str, given: Arguments) -> bool:
    """None of `forbidden_words` is found as a whole word."""
    words = given.texts("forbidden_words")
    if given.strict_wording:
        patterns = [given.pattern("forbidden_words", word) for word in words]
    else:
        patterns = [given.pattern("forbidden_words", rf"\b{word}\b") for word in words]
    return not any(pattern.search(response) for pattern in patterns)


def excluded(response: str, given: Arguments) -> bool:
    """`keyword` does not stand between two blanks. Strictly worded: it is nowhere, in whatever case."""
    keyword = given.text("keyword")
    if given.strict_wording:
        return not given.pattern("keyword", keyword).search(response)
    return f" {keyword} " not in response


def at_position(response: str, given: Arguments) -> bool:
    """Word `m` of sentence `n`, both from 1, is `keyword`. Marks count as words."""
    keyword, n, m = given.text("keyword"), given.number("n", least=1), given.number("m", least=1)
    sentences = ruled_sentences(response)
    words = treebank_words(sentences[n - 1]) if n <= len(sentences) else []
    return m <= len(words) and words[m - 1] == keyword


def palindrome(response: str, given: Arguments) -> bool:
    """A word reads the same backwards. Strictly worded: two letters or more, marks and case aside."""
    words = response.split()
    if given.strict_wording:
        words = [word for text in words if len(word := text.strip(_MARKS).lower()) > 1]
    return any(word == word[::-1] for word in words)


def first_is_last(response: str, given: Arguments) -> bool:
    """The last word is the first, case aside. A full stop at the end counts as a word; strictly worded it does not."""
    words = [word.lower() for word in treebank_words(response)]
    if given.strict_wording:
        words = [word for word in words if word.strip(_MARKS)]
    return len(words) > 1 and words[0] == words[-1]


def no_adjacent_letters(response: str, given: Arguments) -> bool:
    """No two words in a row begin with letters that follow each other in the alphabet, case aside."""
    initials = [word[0].lower() for word in response.split()]
    return all(ord(second[0]) - ord(first[0]) != 1 for first, second in pairwise(initials))


def _count(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for _ in pattern.finditer(text))
