"""The answer that a text states: the last box or announced answer, or its correction; else the last formula.

A check, a unit or a remark after an answer is not an answer. Alternatives, "3 or 4", are one answer that is a list. An
answer that the text denies, cuts off or takes back does not count.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from services.reward.common.math import numerals
from services.reward.common.math.numerals import with_congruences
from services.reward.common.math.stated.claims import is_claimed, is_claimed_box, is_mentioned, is_question, is_supposed
from services.reward.common.math.stated.corrections import CORRECTION, MAX_ITEMS, REACH, corrected
from services.reward.common.math.stated.items import Item, MarkedText, ends_sentence, is_denied, is_rejected
from services.reward.common.math.stated.lists import CONTINUED, are_connected, joint, with_alternatives
from services.reward.common.math.stated.remarks import CHECK, REASON, is_in_modifier, is_remark, without_asides
from services.reward.common.math.stated.spans import Box, find_boxes
from services.reward.common.statements import is_conditional, is_stated

_NAMED = re.compile(r"\s*(?:is|are)\s+(?:the|our|my)\s+(?:final |correct |required )*answer", re.IGNORECASE)
_CLAUSE = re.compile(
    r"\s*(?:(?:so|thus|hence|then|therefore|and|now),?\s+)?(?:since|because|if|when|as|given)\b", re.IGNORECASE
)
_SPECIAL = re.compile(r"<\|[^|<>]{1,40}\|>")
_LEAD = 120
"""Number of characters before an item that are examined."""
_BOLD_RESULT = re.compile(r"=\s*\*\*([^*\n]{1,40})\*\*")


def stated_answers(text: str, box_rank: int = 50, forms: Sequence[str] = ("latex", "expr")) -> list[str]:
    """Returns the answer in LaTeX, and for boxes side by side also the last box alone; [] if there is none.

    `box_rank` is `boxed_match_priority`: below 50 boxes come before announced answers, above 50 after them, and below 0
    they count like other formulas.
    """
    text = with_congruences(_BOLD_RESULT.sub(r"= \1 ", _SPECIAL.sub(" ", text)))
    marked = MarkedText(text, reads_latex="latex" in forms, reads_plain="expr" in forms)
    boxes = [box for box in marked.boxes if _is_claimed(marked, box)] if box_rank >= 0 else []
    announced = _announced_item(marked, is_box_there=bool(boxes))
    if boxes and (announced is None or box_rank < 50 or (box_rank == 50 and announced.start < boxes[-1].end)):
        return _boxed_answers(marked, boxes)
    return corrected(marked, announced.end, [announced.latex, *announced.others]) if announced else _unannounced(marked)


def _is_claimed(marked: MarkedText, box: Box) -> bool:
    if box.is_cut_off:
        return True
    is_mentioned_only = box.is_blank and is_mentioned(marked.text, box.start, box.end)
    return not is_mentioned_only and is_claimed_box(marked.text, box.start, box.end)


def _unannounced(marked: MarkedText) -> list[str]:
    """Returns the last formula or expression that is neither a check nor a remark."""
    for start, end in reversed(marked.sentences()):
        items = [item for item in marked.items(start, end, max_items=60) if not item.is_denied]
        items = [item for item in items if not is_supposed(marked.text[max(start, item.start - _LEAD) : item.start])]
        named_items = [item for item in items if not is_rejected(marked.text, item.end)]
        items = without_asides(marked, named_items)
        named = next((item for item in items if _NAMED.match(marked.text, item.end)), None)
        if named is not None:
            return [named.latex]
        if (
            not items
            or is_question(marked.text, start, end)
            or (is_remark(marked, start, end) and marked.items(0, start, max_items=1))
        ):
            continue
        first = len(items) - 1
        has_clause = bool(_CLAUSE.match(marked.text, start))
        while first and not has_clause and are_connected(marked, items[first - 1], items[first]):
            first -= 1
        while first and is_in_modifier(marked, start, items[first - 1], items[first]):
            first -= 1
            items = items[: first + 1]
            while first and not has_clause and are_connected(marked, items[first - 1], items[first]):
                first -= 1
        answer = with_alternatives(marked, named_items[first:])
        return corrected(marked, answer.end, [answer.latex, *answer.others])
    return []


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


def _boxed_answers(marked: MarkedText, boxes: list[Box]) -> list[str]:
    """Returns the answer in the last box and boxes next to it; see `stated_answers`.

    Returns [] if the last box is cut off, or if it is blank and no correction follows.
    """
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


_ANNOUNCED = re.compile(
    r"(?:\b(?:answer|ans)\b(?:\s*=|(?P<words>[^\n.:]{0,60}?)(?:\*{0,2}\s*:\s*\*{0,2}|\s(?:is|are|be|equals|was)\b(?:\s*:)?))"
    r"|\banswer\*{0,2}(?=\s*(?:\$|\\\(|\\\[|\n))|(?m:^)\s*####\s)",
    re.IGNORECASE,
)
_NOT_ANNOUNCED = re.compile(
    r"\b(?:check|verify|format|form|question|(?<!among the )(?<!of the )(?<!from the )(?:choices|options?)|key"
    r"|put|write|give|box|boxed|enclose|place)\b",
    re.IGNORECASE,
)
_REWRITTEN = re.compile(
    r"\b(?:convert|express|round|multiply|divide|simplify|add|subtract)(?:e?s|ing|ed)?\s[^.!?\n]{0,20}\b(?:the|our|your|this)\s+"
    r"(?:final )?\Z|\bto (?:the|our|this) \Z",
    re.IGNORECASE,
)
"""Words that change an answer instead of stating it: to express the answer as a percentage."""
_OTHER_ONE = re.compile(r"\b(?:wrong|incorrect|tempting|mistaken|false|(?<!most )common)\s+\Z", re.IGNORECASE)
_DOUBTED = re.compile(
    r"(?:\bnot|n't|never)\s+(?:think|believe|say|sure|certain|convinced|true|the case)\b[^,.;!?]*$|\bdoubt\b[^,.;!?]*$",
    re.IGNORECASE,
)
_LETTER = re.compile(r"[a-zA-Z]")
_EQUALS = re.compile(r"\s*(?:is|equals|are)\b")
_WORDS = re.compile(r"[A-Za-z]{2,}")
_CAPITALS = re.compile(
    r"[\s*:\"'`]*(?!NOT|NO|YES|USD|EUR|AND|OR|TRUE|FALSE|DNE)([A-Z]{2,12})(?![A-Za-z0-9($\\])(?!\s+[A-Za-z])"
)
_CALCULATION = re.compile(
    r"(?!.*\b(?:so|and|then|but|or|is|are|not)\b)[\sa-z/]{0,40}(?:=|[-+*/]|\\times|\\cdot|\\div)\s*\$?\s*"
)
_BY_CASES = re.compile(r"\$?\s+(?:if|when|for)\b[^.\n]{1,80}\b(?:if|when|for|otherwise|else)\b")
_BOLD_WORD = re.compile(r"(?:\A|[\n.!?:])\s*\*\*([A-Za-z]{1,20})[.!]?\*\*[.!]?\s*\Z")
"""A sentence of one bold word that ends the text."""
_STATED_WORD = re.compile(
    r"[\s*:\"'`(]*(?:option |choice )?[\"'`(]?([A-Za-z]{1,20})[)*\"'`]*\s*(?=[.!\n]|\Z|,?\s+(?:since|because|as)\b)",
    re.IGNORECASE,
)
_CHOSEN = re.compile(
    r"\b(?:among|out of|of|from)\s+(?:all\s+)?(?:the|these)\s+(?:\w+\s+){0,2}(?:choices|options|alternatives),?"
    r"(?:\s+it is|\s+the (?:correct|right|best) \w+ is)?\s+(?=[(*\"'`]*(?:option\s|choice\s)?[(*\"'`]*(?-i:[A-Z])\b)"
    r"|\b(?:correct|right|best)\s+(?:option|choice|letter)\s+is\b(?:\s*:)?",
    re.IGNORECASE,
)
"""A choice: among the choices, B."""
_MAX_WORDS_TO_ANSWER = 4


def _announced_item(marked: MarkedText, is_box_there: bool) -> Item | None:
    """Returns the last announced answer. If it does not follow directly, it counts only if nothing else is stated."""
    distant: Item | None = None
    for found in reversed(list(_ANNOUNCED.finditer(marked.text))):
        before = marked.text[max(0, found.start() - 80) : found.start()]
        words = found["words"] or ""
        if _NOT_ANNOUNCED.search(words) or is_denied(words) or _DOUBTED.search(before) or _REWRITTEN.search(before):
            continue
        if _OTHER_ONE.search(before) or (is_box_there and REASON.search(before)):
            continue
        item = _behind_announcement(marked, found.end())
        if item is None or not ("####" in found[0] or is_claimed(marked.text, found.start(), item.end)):
            continue
        words = marked.text[found.end() : item.start]
        is_label = ":" in found[0] or "####" in found[0]
        if is_label or (len(_WORDS.findall(words)) <= _MAX_WORDS_TO_ANSWER and not CHECK.search(words)):
            return item
        distant = distant or item
    return None if is_box_there else distant


def stated_word(text: str) -> str:
    """Returns the word after the last announcement, as in "The answer is Monday.", or the bold word that is the last
    sentence; "" for anything else."""
    text = _SPECIAL.sub(" ", text)
    if "\\boxed" not in text and (bold := _BOLD_WORD.search(text[-200:])):
        return bold[1]
    announced = [found for found in _ANNOUNCED.finditer(text) if not _NOT_ANNOUNCED.search(found["words"] or "")]
    last = max([*announced, *_CHOSEN.finditer(text)], key=lambda found: found.end(), default=None)
    if last is None or text.find("\\boxed", last.start()) >= 0:
        return ""
    word = _STATED_WORD.match(text, last.end())
    if word is None or is_denied(last[0]) or is_conditional(text, last.start()):
        return ""
    if not is_stated(text, last.start(), word.end(1)):
        return ""
    return "" if CORRECTION.search(text, word.end()) else word[1]


def _behind_announcement(marked: MarkedText, start: int) -> Item | None:
    if letters := _CAPITALS.match(marked.text, start):
        return Item(letters.start(1), letters.end(), letters[1])
    items = marked.items(start, start + REACH, MAX_ITEMS)
    while items and items[0].is_denied:
        items = items[1:]
    if not items or ends_sentence(marked.text[start : items[0].start]):
        return None
    if len(items) > 1 and _LETTER.fullmatch(items[0].latex) and _EQUALS.match(marked.text, items[0].end):
        items = items[1:]  # The largest n is 34.
    if _BY_CASES.match(marked.text, items[0].end):
        return Item(items[0].start, items[-1].end, ", ".join(item.latex for item in items))
    return with_alternatives(marked, _from_result(marked, items))


def _from_result(marked: MarkedText, items: list[Item]) -> list[Item]:
    """Returns the items from the result of a calculation with units onward: 15 gallons * 8 pints/gallon = 120 pints."""
    first = 0
    for index, (one, other) in enumerate(pairwise(items), start=1):
        between = marked.text[one.end : other.start]
        if not (_CALCULATION.fullmatch(between) or (not between.strip() and CONTINUED.match(other.latex))):
            break
        if "=" in between or "=" in other.latex:
            first = index
    return items[first:]
