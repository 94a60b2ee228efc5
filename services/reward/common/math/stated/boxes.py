"""Answers in boxes: the last box, boxes next to it, and the sign and unit around it."""

import re
from itertools import pairwise

from services.reward.common.math import numerals
from services.reward.common.math.stated.corrections import CORRECTION, corrected
from services.reward.common.math.stated.items import MarkedText
from services.reward.common.math.stated.lists import joint
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
    """Returns the answer in the last box and boxes next to it; see `stated_answers`. Returns [] if the last box is cut
    off, or if it is blank and no correction follows."""
    last = boxes[-1]
    if last.is_cut_off:
        return []
    if last.is_blank:
        return corrected(marked, last.end, [])
    joined = [last]
    for box in reversed(boxes[:-1]):
        if box.is_blank or not _are_together(marked.text[box.end : joined[0].start]):
            break
        joined.insert(0, box)
    answers = _list_of(marked, joined)
    if not answers or not _SEPARATED.search(marked.text[joined[0].end : last.start]):
        answers.append(_with_surroundings(marked, last))
    return corrected(marked, last.end, answers)


def _list_of(marked: MarkedText, boxes: list[Box]) -> list[str]:
    """Returns the contents of boxes side by side as one answer, or [] if all contents are equal."""
    contents = [box.content for box in boxes]
    different = [box for index, box in enumerate(boxes) if box.content not in contents[:index]]
    answer = different[0].content
    for one, other in pairwise(different):
        answer += joint(one.content, marked.text[one.end : other.start], other.content) + other.content
    return [answer] if len(different) > 1 else []


def _are_together(between: str) -> bool:
    """Returns whether two boxes with this text between them are parts of one answer."""
    if len(between) >= _BETWEEN_BOXES or CORRECTION.search(between) or _CONSEQUENCE.search(between):
        return False
    return len(between) < 10 or bool(re.search(r"\b(?:and|or)\b|,|;", between))


def _with_surroundings(marked: MarkedText, box: Box) -> str:
    """Returns a box with the sign before it and the unit after it."""
    before = marked.text[max(0, box.start - 40) : box.start]
    suffix = numerals.suffix_at(marked.text, box.end)
    behind = None if suffix else _BEHIND_BOX.match(marked.text, box.end)
    unit = suffix[0] if suffix else (behind[1] or "").strip() if behind else ""
    content = box.content
    inner = find_boxes(content)
    if len(inner) == 1 and inner[0].start == 0 and inner[0].end == len(content):
        content = inner[0].content
    if _SIGN_BEFORE_BOX.search(before) and not _LIST_MARK.search(before) and not content.startswith("-"):
        content = f"-{content}" if _SIMPLE.fullmatch(content) else f"-({content})"
    return content + (unit or marked.unit_at(behind.end() if behind else box.end)[0])
