"""Answers in boxes: the last box, boxes next to it, and the sign and unit around it."""

import re

from services.reward.common.math.stated.corrections import CORRECTION, corrected
from services.reward.common.math.stated.items import MarkedText
from services.reward.common.math.stated.spans import Box, find_boxes

_SIGN_BEFORE_BOX = re.compile(r"(?:\A|[\s=(:,$]|\\\(|\\\[)[-−–](?:\s|\\[,;:! ])*\$?\Z")
_LIST_MARK = re.compile(r"\n[ \t]*[-–] +\Z")
_BEHIND_BOX = re.compile(
    r"\s*((?:\\[,;:! ]|~|\s)*(?:\\text\w*\{[^{}]{1,40}\}|\\mathrm\{[^{}]{1,40}\})(?:\^\{?[0-9]\}?)?"
    r"|\\?%|\^\{?\\circ\}?|°|!(?=\$|\\\))|\\pi(?![a-z]))?\s*(?:\$|\\\)|\\\])?"
)
_SIMPLE = re.compile(r"[0-9.,]+|\\[a-z]+(?:\{[^{}]*\})*|[a-z]")
_CONSEQUENCE = re.compile(r"\b(?:so|then|thus|therefore|hence|is|are|gives|becomes|finally)\b", re.IGNORECASE)
_SEPARATED = re.compile(r"[,;&]|\b(?:and|or)\b")
_BETWEEN_BOXES = 70


def boxed_answers(marked: MarkedText, boxes: list[Box]) -> list[str]:
    """Returns the answer in the last box and boxes next to it; see `stated_answers`. [] if the last box is cut off."""
    last = boxes[-1]
    if last.is_cut_off:
        return []
    joined = [last]
    for box in reversed(boxes[:-1]):
        if not _are_together(marked.text[box.end : joined[0].start]):
            break
        joined.insert(0, box)
    contents = list(dict.fromkeys(box.content for box in joined))
    answers = [", ".join(contents)] if len(contents) > 1 else []
    if not answers or not _SEPARATED.search(marked.text[joined[0].end : last.start]):
        answers.append(_with_surroundings(marked, last))
    return corrected(marked, last.end, answers)


def _are_together(between: str) -> bool:
    """Returns whether two boxes with this text between them are parts of one answer."""
    if len(between) >= _BETWEEN_BOXES or CORRECTION.search(between) or _CONSEQUENCE.search(between):
        return False
    return len(between) < 10 or bool(re.search(r"\b(?:and|or)\b|,|;", between))


def _with_surroundings(marked: MarkedText, box: Box) -> str:
    """Returns a box with the sign before it and the unit after it."""
    before = marked.text[max(0, box.start - 40) : box.start]
    behind = _BEHIND_BOX.match(marked.text, box.end)
    unit = (behind[1] or "").strip() if behind else ""
    content = box.content
    inner = find_boxes(content)
    if len(inner) == 1 and inner[0].start == 0 and inner[0].end == len(content):
        content = inner[0].content
    if _SIGN_BEFORE_BOX.search(before) and not _LIST_MARK.search(before) and not content.startswith("-"):
        content = f"-{content}" if _SIMPLE.fullmatch(content) else f"-({content})"
    return content + (unit or marked.unit_at(behind.end() if behind else box.end)[0])
