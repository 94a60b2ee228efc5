"""Text around an answer: checks, reasons, remarks and asides."""

import re

from services.reward.common.math.stated.items import Item, MarkedText

CHECK = re.compile(
    r"\b(?:check(?:ing|s|ed)?|verif\w+|confirm\w*|substitut\w+|plug\w*|test(?:ing)?|double-check\w*|sanity|remark|note"
    r"|indeed|because|since|recall|proof|explanation|reason)\b",
    re.IGNORECASE,
)
"""Words of a check or a reason, which states no answer."""
REASON = re.compile(
    r"\b(?:note|remark|because|since|recall|proof|explanation|reason|require[sd]?|where|if|common|think|expect|guess|tempted)\b[^.!?\n]*\Z",
    re.IGNORECASE,
)
"""A reason or a supposition that continues to the end of the text before an answer."""
CHECK_SENTENCE = re.compile(
    r"\s*\**\(?(?:(?:(?:as|to|let me|let's|we can|i|quick|sanity|double)[\s-]*)?(?:a )?(?:check|verif|confirm)"
    r"|indeed\b|note\b|remark\b|(?:because|since)\b[^,]*\Z|this is because|proof\b|recall\b|explanation\b"
    r"|substituting|plugging|(?:by|for|in) (?:comparison|contrast)\b|incidentally\b|by the way\b|as an aside\b"
    r"|(?:without|had)\b[^.]*\bwould have\b)",
    re.IGNORECASE,
)
"""The beginning of a sentence that checks or explains."""
REMARK = re.compile(
    r"^[\s$]*[,(]?\s*(?:(?:or|i\.e\.,?|that is,?|which is)\s+)*"
    r"(?:about|approximately|approx\.?|roughly|nearly|equivalently|i\.e\.,?|that is,?|namely|"
    r"e\.g\.,?|for example,?|for instance,?|such as|"
    r"instead of|rather than|and not|not|as|since|because|when|where|for|if|given|at"
    r"|(?:and )?(?:which |that |it |this )?(?:(?:is )?(?:attained|achieved|reached)|is|occurs?)\s+"
    r"(?:about|approximately|roughly|at|when|for|if))\s*$",
    re.IGNORECASE,
)
"""Words between an answer and a remark on it: 1/6, or about 16.7%."""
_REMARKS = re.compile(
    r"^[ \t#*_>(-]{0,10}(?:(?:some|a few|further|additional)\s+)?(?:comments|remarks|notes|observations)\W{0,4}:",
    re.IGNORECASE | re.MULTILINE,
)
"""The beginning of a paragraph of remarks."""
_BRACKETED = re.compile(r"\s*\((?=[A-Z][a-z]+\s)[^()]*\)\s*\Z")
PART = re.compile(r"[\s$]*(?:[a-z]+\s)?of (?:which|whom)\b")
"""Words after a part of the previous number: 28 segments, 8 of which are sides."""
_PART_BEFORE = re.compile(r",\s*of (?:which|whom)[\s$]*\Z")
_LETTER = re.compile(r"[a-zA-Z]")
_BECAUSE = re.compile(r"\bbecause\b", re.IGNORECASE)
_INFINITIVE = re.compile(r"\bto\s+(?:be|[a-z]{2,})\b(?:\s+to\b)?", re.IGNORECASE)
_MODIFYING = re.compile(
    r"\b(?:to|for|in|after|within|during|over|out of|per|than|before|until|among|between|every|when|while)\b"
    r"|\bthe\s+(?:\w+\s+){0,2}\Z|\A\s*\w+s of\s+\Z"
)
_NEW_CLAUSE = re.compile(
    r"[.,;:=\n]|\b(?:is|are|was|were|be|equals?|so|then|thus|hence|therefore|makes?|gives?|gets?|means?|leaves?|yields?"
    r"|leaving|giving|making|has|had|have|will|would|and|or|but|becomes?|costs?|totals?"
    r"|an?\s+(?:\w+\s+){0,2}(?:of|at)\b)(?![a-z])"
)
"""Words that introduce a different number."""
_VERB = re.compile(
    r"\b(?:is|are|was|were|be|been|takes?|took|needs?|needed|has|had|have|gets?|got|makes?|made|earns?|earned|pays?|paid"
    r"|costs?|spends?|spent|saves?|saved|uses?|used|eats?|ate|will|would|can|could|must|should|requires?|grows?|sells?|sold"
    r"|reads?|runs?|walks?|drives?|travels?|produces?|receives?|contains?|left|gives?|buys?|bought)\b",
    re.IGNORECASE,
)
_IN_BRACKETS = re.compile(r"\s\((?![^()]*\bor\b)[^()]*\Z")


def is_remark(marked: MarkedText, start: int, end: int) -> bool:
    """Returns whether a sentence checks or explains an answer, is in brackets, or is in a paragraph of remarks."""
    paragraph = marked.text.rfind("\n\n", 0, start) + 1
    sentence = marked.text[start:end]
    return bool(
        CHECK_SENTENCE.match(sentence) or _BRACKETED.match(sentence) or _REMARKS.search(marked.text, paragraph, end)
    )


def without_asides(marked: MarkedText, items: list[Item]) -> list[Item]:
    """Returns the items of a sentence without final items that are remarks, reasons, or in brackets."""
    reason = _BECAUSE.search(marked.text, items[0].end, items[-1].start) if items else None
    if reason:
        before = [item for item in items if item.end <= reason.start()]
        words = marked.text[before[-1].end : reason.start()] + marked.text[reason.end() : items[-1].start]
        items = items if "\n" in words or ":" in words else before
    while len(items) > 1 and _is_aside(marked, items):
        items = items[:-1]
    return items


def _is_aside(marked: MarkedText, items: list[Item]) -> bool:
    """Returns whether the last item is a remark on the previous item, follows it in brackets, or repeats its letter."""
    before, last = items[-2:]
    between = marked.text[before.end : last.start]
    is_letter = bool(_LETTER.fullmatch(last.latex)) and before.latex.startswith((f"{last.latex}=", f"{last.latex} ="))
    is_part = _PART_BEFORE.search(between) or PART.match(marked.text, last.end)
    return is_letter or bool(
        is_part or REMARK.search(between) or _IN_BRACKETS.search(marked.text[items[0].end : last.start])
    )


def is_in_modifier(marked: MarkedText, start: int, main: Item, other: Item) -> bool:
    """Returns whether an item only describes the main number of a sentence that begins at `start`, as in "120 ways to
    arrange the 5 books", "26 inches in 13 years", "15 liters of water out of the 24 liters"."""
    words = _INFINITIVE.sub(" to ", marked.text[main.end : other.start])
    if not _MODIFYING.search(words) or _NEW_CLAUSE.search(words):
        return False
    return "=" in main.latex or bool(_VERB.search(marked.text[start : main.start]))
