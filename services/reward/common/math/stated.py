"""The answer that a text states: the last box or announced answer, or the correction behind it; else the last formula.

A check, a unit or a remark behind an answer is none. Alternatives, "3 or 4", are one answer that is a list. What the
text denies, cuts off or takes back is no answer.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from services.reward.common.math.items import Item, MarkedText, ends_sentence, is_denied, is_rejected
from services.reward.common.math.spans import Box, find_boxes
from services.reward.common.statements import is_conditional, is_stated

_ANNOUNCED = re.compile(
    r"(?:\b(?:answer|ans)\b(?:\s*=|(?P<words>[^\n.:]{0,60}?)(?:\*{0,2}\s*:\s*\*{0,2}|\s(?:is|are|be|equals|was)\b(?:\s*:)?))"
    r"|\banswer\*{0,2}(?=\s*(?:\$|\\\(|\\\[|\n))|(?m:^)\s*####\s)",
    re.IGNORECASE,
)
_NOT_ANNOUNCED = re.compile(
    r"\b(?:check|verify|format|form|question|choices|options?|key|put|write|give|box|boxed|enclose|place)\b",
    re.IGNORECASE,
)
_REWRITTEN = re.compile(
    r"\b(?:convert|express|round|multiply|divide|simplify|add|subtract)(?:e?s|ing|ed)?\s[^.!?\n]{0,20}\b(?:the|our|your|this)\s+"
    r"(?:final )?\Z|\bto (?:the|our|this) \Z",
    re.IGNORECASE,
)
"""What is done to an answer, which does not state it: to express the answer as a percentage."""
_OTHER_ONE = re.compile(r"\b(?:wrong|incorrect|tempting|mistaken|false|(?<!most )common)\s+\Z", re.IGNORECASE)
_DOUBTED = re.compile(
    r"(?:\bnot|n't|never)\s+(?:think|believe|say|sure|certain|convinced|true|the case)\b[^,.;!?]*$|\bdoubt\b[^,.;!?]*$",
    re.IGNORECASE,
)
_WRONG = r"(?:that|this|it)(?:'s| is| was) (?:wrong|incorrect|not right|not correct|a mistake)"
_NAMES = "(?:answer|choice|option|value|result|approach|way|assumption)"
_INTERJECTED = r"(?:(?<=[.!?,;:\n(])|(?<=\.\.\.)|(?<=[-–—])|(?m:^))\s*"
_CORRECTION = re.compile(
    r"\b(?:correction|corrected|actually|oops|scratch that|strike that|i mean|i meant|my mistake|my bad"
    r"|on second thought|i made (?:a|an) (?:mistake|error)|apologies|sorry|hold on|hmm+|edit|revised|update"
    rf"|recalculating|rechecking|{_WRONG}(?!\s+to\b)|(?:wrong|incorrect)(?!\s+(?:to|{_NAMES}s?)\b)"
    r"|should be|should have been|must be)\b"
    rf"|{_INTERJECTED}(?:no|nope|not quite|or rather)\b(?=\s*[,.:;!?—–-]|\s+(?:wait|it|that|the|i)\b)"
    rf"|{_INTERJECTED}(?:(?:no|oh|but|and|hmm+)[, ]+)?wait\b(?=\s*[,.:;!?…—–-]|\s+(?:no|actually|that|it|i|let|the)\b)",
    re.IGNORECASE,
)
_SAYS_ANSWER = re.compile(
    r"(?:it|its|is|are|the|a|answer|value|result|total|sum|correct|right|final|new|should|be|must|have|been|equals?|to|so|then"
    r"|thus|therefore|hence|that|this|there|i|meant|mean|get|got|we|you|gives|makes|actually|no|now|number|in|fact|just"
    r"|rather|wait|sorry|yes|of|all|as)",
    re.IGNORECASE,
)
"""Words between a correction and its answer; with others a mistake must be named."""
_MISTAKE = re.compile(
    rf"\b(?:{_WRONG}|wrong|incorrect|mistake|error|forgot|missed|misread|miscalculated|overlooked|recalculat\w+|recheck\w+|redo"
    r"|try again|reconsider)\b",
    re.IGNORECASE,
)
_RETRACTED = re.compile(rf"\b(?:{_WRONG}|scratch that|strike that|ignore that)\b", re.IGNORECASE)
_CHECK = re.compile(
    r"\b(?:check(?:ing|s|ed)?|verif\w+|confirm\w*|substitut\w+|plug\w*|test(?:ing)?|double-check\w*|sanity|remark|note"
    r"|indeed|because|since|recall|proof|explanation|reason)\b",
    re.IGNORECASE,
)
_DEMAND = re.compile(r"must be|should be|should have been|wrong|incorrect", re.IGNORECASE)
"""Corrections that are none in a reason or a remark: since each term must be 3."""
_REASON = re.compile(
    r"\b(?:note|remark|because|since|recall|proof|explanation|reason|require[sd]?|where|if|common|think|expect|guess|tempted)\b[^.!?\n]*\Z",
    re.IGNORECASE,
)
_CHECK_SENTENCE = re.compile(
    r"\s*\**\(?(?:(?:(?:as|to|let me|let's|we can|i|quick|sanity|double)[\s-]*)?(?:a )?(?:check|verif|confirm)"
    r"|indeed\b|note\b|remark\b|(?:because|since)\b[^,]*\Z|this is because|proof\b|recall\b|explanation\b"
    r"|substituting|plugging)",
    re.IGNORECASE,
)
_INSTEAD = re.compile(r"\b(?:not|instead of|rather than)\s*$")
_NO_NOUN = "and or to but so as if for in is by of on at plus minus times because since which that when where"
_CONNECTED = re.compile(
    rf"(?:\s+(?!(?:{_NO_NOUN.replace(' ', '|')})\b)[a-z]+){{0,2}}"
    r"[\s,;(*]*(?:(?:and/or|and|or|but|to|through|&|\\text\{\s*(?:and|or)\s*\}|\\lor|\\quad)[\s,;]*)?"
    r"(?:(?:maybe|perhaps|possibly|also|even|alternatively|it|could|might|may|be|either|else|both|is|then|again)\b[\s,]*"
    r"|\*|\\quad|\s)*",
    re.IGNORECASE,
)
_LINK = re.compile(r"[,;&]|\b(?:and|or|to|through|alternatively|possibly|maybe|perhaps)\b|\\lor", re.IGNORECASE)
_NAMED = re.compile(r"\s*(?:is|are)\s+(?:the|our|my)\s+(?:final |correct |required )*answer", re.IGNORECASE)
_CLAUSE = re.compile(
    r"\s*(?:(?:so|thus|hence|then|therefore|and|now),?\s+)?(?:since|because|if|when|as|given)\b", re.IGNORECASE
)
_REMARK = re.compile(
    r"^[\s$]*[,(]?\s*(?:or\s+|i\.e\.,?\s+|that is,?\s+)?"
    r"(?:about|approximately|approx\.?|roughly|nearly|equivalently|i\.e\.,?|that is,?|namely|"
    r"instead of|rather than|and not|not|as|since|because|when|where|for|if|given|at"
    r"|(?:and )?(?:which |that |it |this )?(?:(?:is )?(?:attained|achieved|reached)|is|occurs?)\s+"
    r"(?:about|approximately|roughly|at|when|for|if))\s*$",
    re.IGNORECASE,
)
_LETTER = re.compile(r"[a-zA-Z]")
_EQUALS = re.compile(r"\s*(?:is|equals|are)\b")
_WORDS = re.compile(r"[A-Za-z]{2,}")
_SPECIAL = re.compile(r"<\|[^|<>]{1,40}\|>")
_BOLD_RESULT = re.compile(r"=\s*\*\*([^*\n]{1,40})\*\*")
_SIGN_BEFORE_BOX = re.compile(r"(?:\A|[\s=(:,$]|\\\(|\\\[)[-−–](?:\s|\\[,;:! ])*\$?\Z")
_LIST_MARK = re.compile(r"\n[ \t]*[-–] +\Z")
_BEHIND_BOX = re.compile(
    r"\s*((?:\\[,;:! ]|~|\s)*(?:\\text\w*\{[^{}]{1,40}\}|\\mathrm\{[^{}]{1,40}\})(?:\^\{?[0-9]\}?)?"
    r"|\\?%|\^\{?\\circ\}?|°|!(?=\$|\\\))|\\pi(?![a-z]))?\s*(?:\$|\\\)|\\\])?"
)
_SIMPLE = re.compile(r"[0-9.,]+|\\[a-z]+(?:\{[^{}]*\})*|[a-z]")
_CAPITALS = re.compile(
    r"[\s*:\"'`]*(?!NOT|NO|YES|USD|EUR|AND|OR|TRUE|FALSE|DNE)([A-Z]{2,12})(?![A-Za-z0-9($\\])(?!\s+[A-Za-z])"
)
_CONSEQUENCE = re.compile(r"\b(?:so|then|thus|therefore|hence|is|are|gives|becomes|finally)\b", re.IGNORECASE)
_SEPARATED = re.compile(r"[,;&]|\b(?:and|or)\b")
_CONTINUED = re.compile(r"\s*(?:[+*/=]|-\s|\\(?:times|cdot|div)(?![a-zA-Z]))")
_COMPUTED = re.compile(r"[^=a-zA-Z,]{0,80}[0-9)}]\s*(?:[-+*/]|\\(?:times|cdot|div)\s)[^=a-zA-Z,]{0,80}=")
"""A calculation and its result, which are no element of a list: of 6, 6/2 = 3."""
_CALCULATION = re.compile(
    r"(?!.*\b(?:so|and|then|but|or|is|are|not)\b)[\sa-z/]{0,40}(?:=|[-+*/]|\\times|\\cdot|\\div)\s*\$?\s*"
)
_BY_CASES = re.compile(r"\$?\s+(?:if|when|for)\b[^.\n]{1,80}\b(?:if|when|for|otherwise|else)\b")
_STATED_WORD = re.compile(
    r"[\s*:\"'`(]*(?:option |choice )?[\"'`(]?([A-Za-z]{1,20})[)*\"'`]*\s*(?=[.!\n]|\Z|,?\s+(?:since|because|as)\b)",
    re.IGNORECASE,
)
_IN_BRACKETS = re.compile(r"\s\((?![^()]*\bor\b)[^()]*\Z")
_REACH = 400
"""Characters behind an announcement or a correction in which its answer begins."""
_BEHIND = 600
"""Characters behind an answer in which a correction counts."""
_BETWEEN_BOXES = 70
_MAX_ITEMS = 12
_MAX_WORDS_TO_ANSWER = 4
_MAX_WORDS_TO_CORRECTION = 12


def stated_answers(text: str, box_rank: int = 50, forms: Sequence[str] = ("latex", "expr")) -> list[str]:
    """Returns the answer in LaTeX, and of boxes side by side also the last one alone; [] for none.

    `box_rank` is `boxed_match_priority`: below 50 boxes come before announced answers, above 50 behind them, and below
    0 they are like other formulas.
    """
    text = _BOLD_RESULT.sub(r"= \1 ", _SPECIAL.sub(" ", text))
    marked = MarkedText(text, reads_latex="latex" in forms, reads_plain="expr" in forms)
    boxes = marked.boxes if box_rank >= 0 else []
    announced = _announced(marked, is_box_there=bool(boxes))
    if boxes and (announced is None or box_rank < 50 or (box_rank == 50 and announced.start < boxes[-1].end)):
        return _boxed(marked, boxes)
    return _corrected(marked, announced.end, [announced.latex]) if announced else _unannounced(marked)


def stated_word(text: str) -> str:
    """Returns the word behind the last announcement, as in "The answer is Monday."; "" for anything else."""
    text = _SPECIAL.sub(" ", text)
    announced = [found for found in _ANNOUNCED.finditer(text) if not _NOT_ANNOUNCED.search(found["words"] or "")]
    if not announced or text.find("\\boxed", announced[-1].start()) >= 0:
        return ""
    last = announced[-1]
    word = _STATED_WORD.match(text, last.end())
    if word is None or is_denied(last["words"] or "") or is_conditional(text, last.start()):
        return ""
    if not is_stated(text, last.start(), word.end(1)):
        return ""
    return "" if _CORRECTION.search(text, word.end()) else word[1]


def _boxed(marked: MarkedText, boxes: list[Box]) -> list[str]:
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
    return _corrected(marked, last.end, answers)


def _are_together(between: str) -> bool:
    """Returns whether two boxes with this text between them are parts of one answer."""
    if len(between) >= _BETWEEN_BOXES or _CORRECTION.search(between) or _CONSEQUENCE.search(between):
        return False
    return len(between) < 10 or bool(re.search(r"\b(?:and|or)\b|,|;", between))


def _with_surroundings(marked: MarkedText, box: Box) -> str:
    """Returns a box with the sign before it and the unit behind it."""
    before = marked.text[max(0, box.start - 40) : box.start]
    behind = _BEHIND_BOX.match(marked.text, box.end)
    unit = (behind[1] or "").strip() if behind else ""
    content = box.content
    inner = find_boxes(content)
    if len(inner) == 1 and inner[0].start == 0 and inner[0].end == len(content):
        content = inner[0].content
    if _SIGN_BEFORE_BOX.search(before) and not _LIST_MARK.search(before) and not content.startswith("-"):
        content = f"-{content}" if _SIMPLE.fullmatch(content) else f"-({content})"
    return content + (unit or marked.unit_at(behind.end() if behind else box.end))


def _announced(marked: MarkedText, is_box_there: bool) -> Item | None:
    """Returns the last announced answer; one that does not follow directly only where nothing else is stated."""
    distant: Item | None = None
    for found in reversed(list(_ANNOUNCED.finditer(marked.text))):
        before = marked.text[max(0, found.start() - 80) : found.start()]
        words = found["words"] or ""
        if _NOT_ANNOUNCED.search(words) or is_denied(words) or _DOUBTED.search(before) or _REWRITTEN.search(before):
            continue
        if _OTHER_ONE.search(before) or (is_box_there and _REASON.search(before)):
            continue
        item = _behind_announcement(marked, found.end())
        if item is None:
            continue
        words = marked.text[found.end() : item.start]
        is_label = ":" in found[0] or "####" in found[0]
        if is_label or (len(_WORDS.findall(words)) <= _MAX_WORDS_TO_ANSWER and not _CHECK.search(words)):
            return item
        distant = distant or item
    return None if is_box_there else distant


def _behind_announcement(marked: MarkedText, start: int) -> Item | None:
    if letters := _CAPITALS.match(marked.text, start):
        return Item(letters.start(1), letters.end(), letters[1])
    items = marked.items(start, start + _REACH, _MAX_ITEMS)
    while items and items[0].is_denied:
        items = items[1:]
    if not items or ends_sentence(marked.text[start : items[0].start]):
        return None
    if len(items) > 1 and _LETTER.fullmatch(items[0].latex) and _EQUALS.match(marked.text, items[0].end):
        items = items[1:]  # The largest n is 34.
    if _BY_CASES.match(marked.text, items[0].end):
        return Item(items[0].start, items[-1].end, ", ".join(item.latex for item in items))
    return _with_alternatives(marked, _from_result(marked, items))


def _from_result(marked: MarkedText, items: list[Item]) -> list[Item]:
    """Returns the items from the result on of a calculation with units: 15 gallons * 8 pints/gallon = 120 pints."""
    first = 0
    for index, (one, other) in enumerate(pairwise(items), start=1):
        between = marked.text[one.end : other.start]
        if not (_CALCULATION.fullmatch(between) or (not between.strip() and _CONTINUED.match(other.latex))):
            break
        if "=" in between or "=" in other.latex:
            first = index
    return items[first:]


def _with_alternatives(marked: MarkedText, items: list[Item]) -> Item:
    """Returns the first item and those that words of a list connect with it, as one answer."""
    group = [items[0]]
    for item in items[1:]:
        if item.is_denied or not _are_connected(marked, group[-1], item):
            break
        group.append(item)
    return Item(group[0].start, group[-1].end, ", ".join(item.latex for item in group))


def _are_connected(marked: MarkedText, one: Item, other: Item) -> bool:
    """Returns whether two items are one answer: a list, or a quantity of two units, 3 hours 20 minutes."""
    between = marked.text[one.end : other.start]
    if (
        _CONTINUED.match(other.latex)
        or one.latex.endswith("/}")
        or (_COMPUTED.match(other.latex) and "=" not in one.latex)
    ):
        return False
    if not between.strip() and "\n" not in between:
        return "\\text" in one.latex and "\\text" in other.latex
    return bool(_CONNECTED.fullmatch(between) and _LINK.search(between)) and not _REMARK.match(between)


def _corrected(marked: MarkedText, end: int, answers: list[str]) -> list[str]:
    """Returns the answers, or what a correction behind them says instead."""
    behind = marked.text[end : end + _BEHIND]
    for found in reversed(list(_CORRECTION.finditer(behind))):
        if _DEMAND.fullmatch(found[0]) and _is_remark(behind[: found.start()]):
            continue
        start = end + found.end()
        said = marked.text[start : start + _REACH]
        if _CHECK.search(said.partition(".")[0]) and not _RETRACTED.search(said):
            continue
        items = [item for item in marked.items(start, start + _REACH, _MAX_ITEMS) if not item.is_denied]
        if items and _leads_to_answer(marked.text[start : items[0].start], found[0]):
            return [_last_of_correction(marked, items)]
        if _RETRACTED.search(found[0]):
            return []
    return answers


def _is_remark(before: str) -> bool:
    """Returns whether a sentence gives a reason or remarks something, and names no mistake."""
    reason = _REASON.search(before)
    return reason is not None and not _MISTAKE.search(reason[0])


def _leads_to_answer(words: str, correction: str) -> bool:
    """Returns whether the words between a correction and an item say that the item is the answer."""
    between = _WORDS.findall(words)
    if _MISTAKE.search(correction + words):
        return len(between) <= _MAX_WORDS_TO_CORRECTION
    return all(_SAYS_ANSWER.fullmatch(word) for word in between)


def _last_of_correction(marked: MarkedText, items: list[Item]) -> str:
    """Returns the last answer that a correction comes to, without what it checks or names as wrong behind that."""
    last = items
    while rest := items[1:]:
        lead = marked.text[max(0, rest[0].start - 60) : rest[0].start]
        if _CHECK.search(lead) or _INSTEAD.search(lead):
            break
        if not _are_connected(marked, items[0], rest[0]):
            last = rest
        items = rest
    return _with_alternatives(marked, last).latex


def _unannounced(marked: MarkedText) -> list[str]:
    """Returns the last formula or expression that is no check and no remark."""
    for start, end in reversed(marked.sentences()):
        items = [item for item in marked.items(start, end, max_items=60) if not item.is_denied]
        items = [item for item in items if not is_rejected(marked.text, item.end)]
        while len(items) > 1 and _is_aside(marked, items):
            items.pop()
        named = next((item for item in items if _NAMED.match(marked.text, item.end)), None)
        if named is not None:
            return [named.latex]
        if not items or (_CHECK_SENTENCE.match(marked.text[start:end]) and marked.items(0, start, max_items=1)):
            continue
        first = len(items) - 1
        has_clause = bool(_CLAUSE.match(marked.text, start))
        while first and not has_clause and _are_connected(marked, items[first - 1], items[first]):
            first -= 1
        answer = _with_alternatives(marked, items[first:])
        return _corrected(marked, answer.end, [answer.latex])
    return []


def _is_aside(marked: MarkedText, items: list[Item]) -> bool:
    """Returns whether the last item is a remark on the one before, in brackets behind it, or its letter again."""
    before, last = items[-2:]
    between = marked.text[before.end : last.start]
    is_letter = bool(_LETTER.fullmatch(last.latex)) and before.latex.startswith((f"{last.latex}=", f"{last.latex} ="))
    return is_letter or bool(_REMARK.search(between) or _IN_BRACKETS.search(marked.text[items[0].end : last.start]))
