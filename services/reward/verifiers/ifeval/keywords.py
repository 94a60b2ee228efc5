"""Constraints on single words, and on the beginning and the end: `keywords:*`, `count:count_increment_word`,
`startend:*`, `first_word:*`, `last_word:*`."""

import re
from itertools import pairwise

from services.reward.verifiers.ifeval.arguments import Arguments
from services.reward.verifiers.ifeval.sentences import ruled_sentences
from services.reward.verifiers.ifeval.words import treebank_words

_MARK = re.compile(r"[^\w\s]")
_MARKS = "".join(chr(code) for code in range(33, 127) if not chr(code).isalnum())


def existence(response: str, arguments: Arguments) -> bool:
    """Returns whether the response contains every keyword in `keywords`."""
    patterns = [arguments.pattern("keywords", keyword) for keyword in arguments.texts("keywords")]
    return all(pattern.search(response) for pattern in patterns)


def frequency(response: str, arguments: Arguments) -> bool:
    """Returns whether `keyword` occurs as often as `relation` and `frequency` require."""
    keyword, holds = arguments.keyword("keyword"), arguments.holds("relation", "frequency")
    return holds(_count(keyword, response))


def once(response: str, arguments: Arguments) -> bool:
    """Returns whether `keyword` occurs exactly once."""
    return _count(arguments.keyword("keyword"), response) == 1


def once_and_twice(response: str, arguments: Arguments) -> bool:
    """Returns whether `keyword1` occurs exactly once and `keyword2` exactly twice."""
    first, second = arguments.keyword("keyword1"), arguments.keyword("keyword2")
    return _count(first, response) == 1 and _count(second, response) == 2


def forbidden(response: str, arguments: Arguments) -> bool:
    """Returns whether none of `forbidden_words` occurs as a whole word."""
    words = arguments.texts("forbidden_words")
    expressions = words if arguments.strict_wording else [rf"\b{word}\b" for word in words]
    patterns = [arguments.pattern("forbidden_words", expression) for expression in expressions]
    return not any(pattern.search(response) for pattern in patterns)


def excluded(response: str, arguments: Arguments) -> bool:
    """Returns whether `keyword` never stands between two spaces; with `strict_wording`, whether it never is a whole
    word, in any case."""
    keyword = arguments.text("keyword")
    if arguments.strict_wording:
        return not arguments.pattern("keyword", keyword).search(response)
    return f" {keyword} " not in response


def at_position(response: str, arguments: Arguments) -> bool:
    """Returns whether word `m` of sentence `n`, both counted from 1, is `keyword`. Punctuation marks count as words."""
    keyword, n, m = arguments.text("keyword"), arguments.number("n", minimum=1), arguments.number("m", minimum=1)
    sentences = ruled_sentences(response)
    words = treebank_words(sentences[n - 1]) if n <= len(sentences) else []
    return m <= len(words) and words[m - 1] == keyword


def palindrome(response: str, arguments: Arguments) -> bool:
    """Returns whether the response contains a palindrome, a word that reads the same backward. With `strict_wording`,
    it must have two characters or more, and case and outer marks are ignored."""
    words = response.split()
    if arguments.strict_wording:
        words = [word for text in words if len(word := text.strip(_MARKS).lower()) > 1]
    return any(word == word[::-1] for word in words)


def first_is_last(response: str, arguments: Arguments) -> bool:
    """Returns whether the last word is the first word, ignoring case. A period at the end counts as a word; with
    `strict_wording`, punctuation marks do not count."""
    words = [word.lower() for word in treebank_words(response)]
    if arguments.strict_wording:
        words = [word for word in words if word.strip(_MARKS)]
    return len(words) > 1 and words[0] == words[-1]


def no_adjacent_letters(response: str, arguments: Arguments) -> bool:
    """Returns whether no two words in a row begin with consecutive letters of the alphabet, ignoring case."""
    initials = [word[0].lower() for word in response.split()]
    return all(ord(second[0]) - ord(first[0]) != 1 for first, second in pairwise(initials))


def _count(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for _ in pattern.finditer(text))


def end_phrase(response: str, arguments: Arguments) -> bool:
    """Returns whether the response ends with `end_phrase`, ignoring case, outer white space and outer double quotes."""
    phrase = arguments.text("end_phrase").lower()
    return response.strip().strip('"').lower().endswith(phrase)


def quotation(response: str, arguments: Arguments) -> bool:
    """Returns whether the response begins and ends with a double quote."""
    text = response.strip()
    return len(text) > 1 and text.startswith('"') and text.endswith('"')


def first_word_of_sentences(response: str, arguments: Arguments) -> bool:
    """Returns whether each sentence begins with `first_word`; see `first_word`."""
    wanted = arguments.text("first_word")
    return all(_begins(sentence, wanted, arguments) for sentence in ruled_sentences(response))


def first_word(response: str, arguments: Arguments) -> bool:
    """Returns whether the response begins with `first_word`, ignoring case. A punctuation mark that touches the word is
    part of it; with `strict_wording`, marks are ignored."""
    return _begins(response, arguments.text("first_word"), arguments)


def last_word_of_sentences(response: str, arguments: Arguments) -> bool:
    """Returns whether each sentence ends with `last_word`, ignoring case and punctuation marks."""
    wanted = arguments.text("last_word")
    return all(_ends(sentence, wanted) for sentence in ruled_sentences(response))


def last_word(response: str, arguments: Arguments) -> bool:
    """Returns whether the response ends with `last_word`, ignoring case and punctuation marks."""
    return _ends(response, arguments.text("last_word"))


def _begins(text: str, wanted: str, arguments: Arguments) -> bool:
    words = text.split(maxsplit=1)
    if not words:
        return False
    word, wanted = words[0].lower(), wanted.lower()
    return word == wanted or (arguments.strict_wording and _MARK.sub("", word) == _MARK.sub("", wanted))


def _ends(text: str, wanted: str) -> bool:
    words = text.rsplit(maxsplit=1)
    return bool(words) and _MARK.sub("", words[-1]).lower() == wanted.lower()
