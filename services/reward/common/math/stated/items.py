"""The mathematical items of a text, in order: formulas, boxes and plain expressions, and whether it denies them."""

import re
from dataclasses import dataclass, replace

from services.reward.common.math import numerals
from services.reward.common.math.notation import without_end_of_proof
from services.reward.common.math.stated.claims import is_restated
from services.reward.common.math.stated.plain import expression_at
from services.reward.common.math.stated.spans import Box, Formula, find_boxes, find_formulas

_FIRST_SIGN = re.compile(r"""(?:(?<=[\s=(:*_~"'`|,;!?\[/])|^)(?:[A-Za-z]|[-+0-9.(\[{|$€£¥₹\\]|[<>!]=?\s?(?=[-0-9]))""")
_WORD = re.compile(r"[A-Za-z'’]+|\\[a-zA-Z]+|.", re.DOTALL)
_NO_EXPRESSION = re.compile(r"\\(?:boxed|fbox|text)")
_NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|cannot|can't|except|rules? out|unless"
    r"|(?:is|was|are|were|do|does|did|could|would|should)n't)\b",
    re.IGNORECASE,
)
_OF_SUBJECT = re.compile(
    r"\b(?:who|that|which)\s+(?:\w+\s+){0,2}(?:not|never|neither|cannot|can't|(?:is|was|are|were|do|does|did)n't)\s+"
    r"(?:[\w']+\s+){1,8}?(?:is|are|was|were|equals|=)\s",
    re.IGNORECASE,
)
"""A denial that belongs to the counted things: the number of people who did not take the bus is."""
_REJECTED = re.compile(
    r"[\s$]*(?:(?:do|does|is|are|can|could|will)(?:n't| not)\b|cannot\b|fails?\b|is (?:rejected|impossible|excluded)\b)"
)
_ALL_BUT = re.compile(r"\b(?:anything|everything|all) but\s*$", re.IGNORECASE)
_NO = re.compile(
    r"\b(?:no|other than|different from|instead of|anything like|nothing like|nowhere near|far from|without|hardly)"
    r"[\s$(]*\Z",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(r",|\b(?:so|then|therefore|thus|hence)\b", re.IGNORECASE)
_UP_TO_BUT = re.compile(r".*\bbut\b", re.IGNORECASE | re.DOTALL)
_BOUNDS = tuple(
    (re.compile(rf"\b(?:{words})\s*$", re.IGNORECASE), sign)
    for words, sign in (
        ("at least|no (?:less|fewer) than|not less than|minimum of", "\\ge "),
        ("at most|no more than|not more than|up to|maximum of", "\\le "),
        ("more than|greater than|larger than|over|above|exceeds|beyond", "> "),
        ("less than|fewer than|smaller than|under|below", "< "),
    )
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)(?<!Rs\.)(?<!\b(?:i\.e|e\.g)\.)|\n\s*\n|(?<=[0-9)}$*])\n|\n(?=\s*[-*#|])|<\|")
_OPERATOR_BEFORE = re.compile(r"(?:[*/+×÷]|\\times|\\cdot|\\div|[0-9a-z)] [-x])\s*\$?\Z")
_NO_WORDS = " \n\t*:_$`>#|"
_LETTERS_OF_LEAD = 200
"""Number of characters before an item that are examined."""


@dataclass(frozen=True)
class Item:
    start: int
    end: int
    latex: str
    is_denied: bool = False
    others: tuple[str, ...] = ()
    """Other forms of the same amount that the text gives: 600 seconds, for 10 minutes."""


class MarkedText:
    """A text with its boxes and formulas."""

    def __init__(self, text: str, reads_latex: bool = True, reads_plain: bool = True) -> None:
        self.text = text
        self.boxes = find_boxes(text) if reads_latex else []
        self._spans: list[Formula | Box] = [*self.boxes, *(find_formulas(text) if reads_latex else ())]
        self._spans.sort(key=lambda span: span.start)
        self._reads_plain = reads_plain

    def items(self, start: int, stop: int, max_items: int) -> list[Item]:
        """Returns the items that begin between two positions, at most `max_items`."""
        stop = min(stop, len(self.text))
        spans = [span for span in self._spans if start <= span.start < stop]
        found: list[Item] = []
        position = words_from = start
        while position < stop and len(found) < max_items:
            spans = [span for span in spans if span.start >= position]
            item = self._plain(position, spans[0].start if spans else stop)
            if item is None:
                if not spans:
                    break
                item = self._spanned(spans[0])
            position = item.end
            if item.latex:
                before = self.text[max(words_from, item.start - _LETTERS_OF_LEAD) : item.start]
                found.append(_judged(_without_rest(item, before), before))
                words_from = item.end
        return found

    def sentences(self) -> list[tuple[int, int]]:
        """Returns the start and end of each sentence or line that is not empty."""
        ends = [found.end() for found in _SENTENCE_END.finditer(self.text)]
        spans = iter(self._spans)
        span = next(spans, None)
        bounds = [0]
        for end in ends:
            while span is not None and span.end <= end:
                span = next(spans, None)
            if span is None or not span.start < end < span.end:
                bounds.append(end)
        stops = [*bounds[1:], len(self.text)]
        return [(start, end) for start, end in zip(bounds, stops, strict=True) if self.text[start:end].strip()]

    def unit_at(self, position: int) -> tuple[str, int]:
        """Returns the unit, word of size, base or modulus at a position in LaTeX ("" if there is none), and its end."""
        if suffix := numerals.suffix_at(self.text, position):
            return suffix
        behind = expression_at("1" + self.text[position : position + 80], 0)
        if behind is None or not behind.latex.startswith("1\\text"):
            return "", position
        return behind.latex[1:], position + behind.end - 1

    def _spanned(self, span: Formula | Box) -> Item:
        content = span.content.strip()
        if isinstance(span, Formula) and (boxes := find_boxes(content)):
            return Item(span.start, span.end, ", ".join(box.content for box in boxes if not box.is_blank))
        unit, end = self.unit_at(span.end) if without_end_of_proof(content) else ("", span.end)
        return Item(span.start, end, content + unit if without_end_of_proof(content) else "")

    def _plain(self, start: int, stop: int) -> Item | None:
        """Returns the first plain expression between two positions."""
        position = start if self._reads_plain else stop
        text = self.text[:stop]
        while found := _FIRST_SIGN.search(text, position):
            is_expression = not _NO_EXPRESSION.match(text, found.start())
            if is_expression and (expression := expression_at(text, found.start())):
                return Item(expression.start, expression.end, expression.latex)
            word = _WORD.match(text, found.start())
            position = word.end() if word else found.end()
        return None


def ends_sentence(text: str) -> bool:
    """Returns whether a sentence ends in a text that contains no words."""
    return bool(_SENTENCE_END.search(text.strip(_NO_WORDS)))


def is_denied(words: str) -> bool:
    """Returns whether the last clause of the words denies the next words."""
    clause = _CLAUSE_END.split(_UP_TO_BUT.sub("", words))[-1]
    return bool(_ALL_BUT.search(words) or _NO.search(words) or _NEGATION.search(_OF_SUBJECT.sub("", clause)))


def is_rejected(text: str, end: int) -> bool:
    """Returns whether the text after an item rejects it: n = 11 does not work."""
    return bool(_REJECTED.match(text, end))


def _without_rest(item: Item, before: str) -> Item:
    """Returns the result of a calculation whose beginning is another item: 1 foot / 10 feet * 100% = 10%."""
    is_rest = "=" in item.latex and _OPERATOR_BEFORE.search(before)
    return replace(item, latex=item.latex.rpartition("=")[2].strip()) if is_rest else item


def _judged(item: Item, before: str) -> Item:
    """Returns the item, marked as denied, restated or a bound by the words before it."""
    sentence = _SENTENCE_END.split(before)[-1]
    for pattern, sign in _BOUNDS:
        if pattern.search(sentence):
            return replace(item, latex=sign + item.latex)
    return replace(item, is_denied=is_denied(sentence) or is_restated(sentence, item.latex))
