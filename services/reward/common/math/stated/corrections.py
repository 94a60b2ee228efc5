"""Corrections after an answer: the new answer, and words that take the old answer back."""

import re

from services.reward.common.math.stated.items import Item, MarkedText
from services.reward.common.math.stated.lists import are_connected, with_alternatives
from services.reward.common.math.stated.remarks import CHECK, REASON

_WRONG = r"(?:that|this|it)(?:'s| is| was) (?:wrong|incorrect|not right|not correct|a mistake)"
_NAMES = "(?:answer|choice|option|value|result|approach|way|assumption)"
_INTERJECTED = r"(?:(?<=[.!?,;:\n(])|(?<=\.\.\.)|(?<=[-–—])|(?m:^))\s*"
CORRECTION = re.compile(
    r"\b(?:correction|corrected|actually|oops|scratch that|strike that|i mean|i meant|my mistake|my bad"
    r"|on second thought|i made (?:a|an) (?:mistake|error)|apologies|sorry|hold on|hmm+|edit|revised|update"
    rf"|recalculating|rechecking|{_WRONG}(?!\s+to\b)|(?:wrong|incorrect)(?!\s+(?:to|{_NAMES}s?)\b)"
    r"|should be|should have been|must be)\b"
    rf"|{_INTERJECTED}(?:no|nope|not quite|or rather)\b(?=\s*[,.:;!?—–-]|\s+(?:wait|it|that|the|i)\b)"
    rf"|{_INTERJECTED}(?:(?:no|oh|but|and|hmm+)[, ]+)?wait\b(?=\s*[,.:;!?…—–-]|\s+(?:no|actually|that|it|i|let|the)\b)",
    re.IGNORECASE,
)
"""Words that announce a correction."""
_SAYS_ANSWER = re.compile(
    r"(?:it|its|is|are|the|a|answer|value|result|total|sum|correct|right|final|new|should|be|must|have|been|equals?|to|so|then"
    r"|thus|therefore|hence|that|this|there|i|meant|mean|get|got|we|you|gives|makes|actually|no|now|number|in|fact|just"
    r"|rather|wait|sorry|yes|of|all|as)",
    re.IGNORECASE,
)
"""Words between a correction and its answer. With other words the text must name a mistake."""
_MISTAKE = re.compile(
    rf"\b(?:{_WRONG}|wrong|incorrect|mistake|error|forgot|missed|misread|miscalculated|overlooked|recalculat\w+|recheck\w+|redo"
    r"|try again|reconsider)\b",
    re.IGNORECASE,
)
_RETRACTED = re.compile(rf"\b(?:{_WRONG}|scratch that|strike that|ignore that)\b", re.IGNORECASE)
_DEMAND = re.compile(r"must be|should be|should have been|wrong|incorrect", re.IGNORECASE)
"""Words that do not correct in a reason or a remark: since each term must be 3."""
_INSTEAD = re.compile(r"\b(?:not|instead of|rather than)\s*$")
_WORDS = re.compile(r"[A-Za-z]{2,}")
REACH = 400
"""Number of characters after an announcement or a correction within which its answer begins."""
_BEHIND = 600
"""Number of characters after an answer within which a correction counts."""
MAX_ITEMS = 12
_MAX_WORDS_TO_CORRECTION = 12


def corrected(marked: MarkedText, end: int, answers: list[str]) -> list[str]:
    """Returns the answers, or the answers of a correction that follows them."""
    behind = marked.text[end : end + _BEHIND]
    for found in reversed(list(CORRECTION.finditer(behind))):
        if _DEMAND.fullmatch(found[0]) and _is_remark(behind[: found.start()]):
            continue
        start = end + found.end()
        said = marked.text[start : start + REACH]
        if CHECK.search(said.partition(".")[0]) and not _RETRACTED.search(said):
            continue
        items = [item for item in marked.items(start, start + REACH, MAX_ITEMS) if not item.is_denied]
        if items and _leads_to_answer(marked.text[start : items[0].start], found[0]):
            return [_last_of_correction(marked, items)]
        if _RETRACTED.search(found[0]):
            return []
    return answers


def _is_remark(before: str) -> bool:
    """Returns whether a sentence gives a reason or a remark, and names no mistake."""
    reason = REASON.search(before)
    return reason is not None and not _MISTAKE.search(reason[0])


def _leads_to_answer(words: str, correction: str) -> bool:
    """Returns whether the words between a correction and an item say that the item is the answer."""
    between = _WORDS.findall(words)
    if _MISTAKE.search(correction + words):
        return len(between) <= _MAX_WORDS_TO_CORRECTION
    return all(_SAYS_ANSWER.fullmatch(word) for word in between)


def _last_of_correction(marked: MarkedText, items: list[Item]) -> str:
    """Returns the last answer of a correction, without later checks and answers that it calls wrong."""
    last = items
    while rest := items[1:]:
        lead = marked.text[max(0, rest[0].start - 60) : rest[0].start]
        if CHECK.search(lead) or _INSTEAD.search(lead):
            break
        if not are_connected(marked, items[0], rest[0]):
            last = rest
        items = rest
    return with_alternatives(marked, last).latex
