"""Sentence splitting, in the two ways that instruction checkers use.

`punkt_sentences` classifies each period by statistics of English (Punkt, Kiss and Strunk 2006, doi:10.1162/
coli.2006.32.4.485), with NLTK's model; IFEval counts sentences with it. `ruled_sentences`, for the constraints on
single sentences, uses a fixed list of abbreviations and sentence starters.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

# Placeholders for a period inside a sentence and for the end of a sentence, while rules are applied. Each is a single
# noncharacter, which no text may contain, so that a protected period does not change the length of the text.
_POINT, _END = "\ufdd0", "\ufdd1"
_STARTER = r"(?:Mr|Mrs|Ms|Dr|Prof|Capt|Cpt|Lt|Wherever|(?:He|She|It|They|Their|Our|We|But|However|That|This)\s)"
# Closing quotes and brackets after a mark. Curly quotes of either direction count as closing.
_CLOSING = re.compile(r"""["')\]}‘’“”«»]+?(?:\s+|(?=--)|$)""", re.MULTILINE)
# A completion may repeat a word a million times, so decisions about short contexts are cached.
_MAX_CACHED_LENGTH = 64
_COMPANY = r"(?:Inc|Ltd|Jr|Sr|Co)"
_QUOTE_SWAPS = ((".”", "”."), ('."', '".'), ('!"', '"!'), ('?"', '"?'))


def load() -> None:
    """Loads the model, in about a tenth of a second."""
    _punkt()


@lru_cache(maxsize=2)  # Several constraints in a row split the same answer.
def punkt_sentences(text: str) -> tuple[str, ...]:
    """Returns the sentences, without white space between them. Closing quotes and brackets stay with their sentence."""
    return tuple(text[start:end] for start, end in _realigned(text, list(_spans(text))))


@cache
def _punkt() -> tuple[Any, Any, Any]:
    import punkt

    return punkt.PunktBoundaryDetector(), punkt.PunktWordTokenizer(), punkt.load_model("english")


def _spans(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for match, word_start in _candidates(text):
        if _ends_sentence(text[word_start : match.end()] + match["after_tok"]):
            yield start, match.end()
            start = match.end() if match["next_tok"] is None else match.start("next_tok")
    yield start, len(text.rstrip())


def _candidates(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """Yields possible ends of sentences, each with the start of the word before it. Only the last mark of a run of
    marks is a candidate."""
    detector = _punkt()[0]
    last: re.Match[str] | None = None
    word_start = word_end = 0
    for match in detector.match(text):
        space = _last_space(text, word_end, match.start())
        next_start = word_start if space is None else space + 1
        if last is not None and word_end <= next_start:
            yield last, word_start
        last, word_start, word_end = match, next_start, match.start()
    if last is not None:
        yield last, word_start


def _last_space(text: str, start: int, end: int) -> int | None:
    """Returns the index of the last white space after `start` and before `end`. White space at `start` itself belongs
    to the mark before it."""
    return next((index for index in range(end - 1, start, -1) if text[index] in " \t\n\r\v\f"), None)


def _ends_sentence(context: str) -> bool:
    return _decide(context) if len(context) <= _MAX_CACHED_LENGTH else _decide.__wrapped__(context)


@lru_cache(maxsize=1 << 14)
def _decide(context: str) -> bool:
    import punkt

    _, words, model = _punkt()
    tokens = list(punkt.annotate_tokens(words.tokenize_annotated(context), model))
    return any(token.sentbreak for token in tokens[:-1])


def _realigned(text: str, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    skipped = 0
    for (start, end), following in zip(spans, [*spans[1:], None], strict=True):
        start += skipped
        match = _CLOSING.match(text[slice(*following)]) if following else None
        skipped = match.end() if match else 0
        if following and match:
            yield start, following[0] + len(match.group().rstrip())
        elif start < end:
            yield start, end


def ruled_sentences(text: str) -> list[str]:
    """Splits a text by fixed rules: a mark ends a sentence unless it is part of an abbreviation, number or address."""
    text = f" {text}  ".replace("\n", " ")
    text = re.sub(r"(?:Mr|St|Mrs|Ms|Dr)\.", _protect, text)
    text = re.sub(r"\.(?=com|net|org|io|gov|edu|me)", _POINT, text)
    text = re.sub(r"[0-9]\.[0-9]", _protect, text)
    text = re.sub(r"\.{2,}", lambda match: _protect(match) + _END, text)
    text = text.replace("Ph.D.", f"Ph{_POINT}D{_POINT}")
    text = re.sub(r"\s[A-Za-z]\. ", lambda match: " " + _protect(match)[1:], text)
    text = re.sub(rf"((?:[A-Z]\.){{2,3}}) (?={_STARTER})", rf"\1{_END} ", text)
    text = re.sub(r"[A-Za-z]\.[A-Za-z]\.[A-Za-z]\.", _protect, text)
    text = re.sub(r"[A-Za-z]\.[A-Za-z]\.", _protect, text)
    text = re.sub(rf" ({_COMPANY})\. (?={_STARTER})", rf" \1{_END} ", text)
    text = re.sub(rf" (?:{_COMPANY}|[A-Za-z])\.", _protect, text)
    for quoted, unquoted in _QUOTE_SWAPS:
        text = text.replace(quoted, unquoted)
    text = re.sub(r"[.?!]", lambda match: match[0] + _END, text).replace(_POINT, ".")
    sentences = [sentence.strip() for sentence in text.split(_END)]
    return sentences if sentences[-1] else sentences[:-1]


def _protect(match: re.Match[str]) -> str:
    return match[0].replace(".", _POINT)
