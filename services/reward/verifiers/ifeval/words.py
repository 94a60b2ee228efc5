"""Word tokenization by the conventions of the Penn Treebank, like NLTK's word tokenizer.

Every punctuation mark is a separate word, except a period inside a sentence, a mark inside a number, and apostrophes,
which split contractions (do n't, we 'll, can not). Opening double quotes become ``, closing ones ''.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

from services.reward.verifiers.ifeval.sentences import punkt_sentences

_CLITIC = r"(?:re|ve|ll|m|t|s|d|n)\b"
_CONTRACTIONS = (
    ("can", "not"),
    ("d", "'ye"),
    ("gim", "me"),
    ("gon", "na"),
    ("got", "ta"),
    ("lem", "me"),
    ("more", "'n"),
)
# A completion may repeat a sentence a million times, so the words of short sentences are cached.
_MAX_CACHED_LENGTH = 64
_CLOSING = frozenset("])}>\"' »”’ ")

# The order matters: each rule sees the marks that the rules before it have separated.
_OPENING = (
    (re.compile(r"[«“‘„]|`+"), r" \g<0> "),
    (re.compile(r'^"'), "``"),
    (re.compile("``"), r" \g<0> "),
    (re.compile(r"""(?<=[ (\[{<])(?:"|'')"""), " `` "),
    (re.compile(rf"(?<!\w)'(?!{_CLITIC})(?=\w)", re.IGNORECASE), "' "),
)
_MARKS = (
    (re.compile(r"([:,])(\D)"), r" \1 \2"),
    (re.compile(r"[:,]$"), r" \g<0> "),
    (re.compile(r"\.{2,}|[;@#$%&\u2012-\u2015?!*]"), r" \g<0> "),
    (re.compile(r"(?<=[^'])' "), " ' "),
    (re.compile(r"[\[\](){}<>]|--"), r" \g<0> "),
)
_ENDING = (
    (re.compile(r"[»”’]"), r" \g<0> "),
    (re.compile(r"''|\""), " '' "),
    (re.compile(r"\s+"), " "),
    (re.compile(r"(?<=[^' ])(?:'[sSmMdD]|') "), r" \g<0>"),
    (re.compile(r"(?<=[^' ])(?:'ll|'LL|'re|'RE|'ve|'VE|n't|N'T) "), r" \g<0>"),
    *((re.compile(rf"\b({first})({rest})\b", re.IGNORECASE), r" \1 \2 ") for first, rest in _CONTRACTIONS),
    (re.compile(r"\b(wan)(na)(?=\s)", re.IGNORECASE), r" \1 \2 "),
    (re.compile(r" ('t)(is|was)\b", re.IGNORECASE), r" \1 \2 "),
)


def treebank_words(text: str) -> list[str]:
    """Returns the words and marks of a text, sentence by sentence."""
    return list(chain.from_iterable(map(_words_of, punkt_sentences(text))))


def _words_of(sentence: str) -> Sequence[str]:
    return _split(sentence) if len(sentence) <= _MAX_CACHED_LENGTH else _split.__wrapped__(sentence)


@lru_cache(maxsize=1 << 12)
def _split(sentence: str) -> Sequence[str]:
    for pattern, replacement in _OPENING:
        sentence = pattern.sub(replacement, sentence)
    sentence = _split_final_period(sentence)
    for pattern, replacement in _MARKS:
        sentence = pattern.sub(replacement, sentence)
    sentence = f" {sentence} "
    for pattern, replacement in _ENDING:
        sentence = pattern.sub(replacement, sentence)
    return sentence.split()


def _split_final_period(sentence: str) -> str:
    """Separates the last period and the closing marks after it from the last word. An ellipsis stays whole."""
    end = len(sentence.rstrip())
    while end and sentence[end - 1] in _CLOSING:
        end -= 1
    if end < 2 or sentence[end - 1] != "." or sentence[end - 2] == ".":
        return sentence
    return f"{sentence[: end - 1]} . {sentence[end:]} "
