"""Answers that a text announces: "the answer is 5", "#### 5"."""

import re
from itertools import pairwise

from services.reward.common.math.stated.claims import is_claimed
from services.reward.common.math.stated.corrections import CORRECTION, MAX_ITEMS, REACH
from services.reward.common.math.stated.items import Item, MarkedText, ends_sentence, is_denied
from services.reward.common.math.stated.lists import CONTINUED, with_alternatives
from services.reward.common.math.stated.remarks import CHECK, REASON
from services.reward.common.statements import is_conditional, is_stated

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


def announced_item(marked: MarkedText, is_box_there: bool) -> Item | None:
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


def announced_word(text: str) -> str:
    """Returns the word after the last announcement, as in "The answer is Monday.", or the bold word that is the last
    sentence; "" for anything else."""
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
