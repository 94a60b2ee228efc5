"""The answer that a text states: the last box or announced answer, or its correction; else the last formula.

A check, a unit or a remark after an answer is no answer. Alternatives, "3 or 4", are one answer. What the text denies,
cuts off or takes back does not count.
"""

import re
from collections.abc import Sequence

from services.reward.common.math.numerals import with_congruences
from services.reward.common.math.stated.announcements import announced_item, announced_word
from services.reward.common.math.stated.boxes import boxed_answers
from services.reward.common.math.stated.claims import is_claimed_box, is_mentioned, is_question, is_supposed
from services.reward.common.math.stated.corrections import corrected
from services.reward.common.math.stated.items import MarkedText, is_rejected
from services.reward.common.math.stated.lists import are_connected, with_alternatives
from services.reward.common.math.stated.remarks import is_in_modifier, is_remark, without_asides
from services.reward.common.math.stated.spans import Box

_NAMED = re.compile(r"\s*(?:is|are)\s+(?:the|our|my)\s+(?:final |correct |required )*answer", re.IGNORECASE)
_CLAUSE = re.compile(
    r"\s*(?:(?:so|thus|hence|then|therefore|and|now),?\s+)?(?:since|because|if|when|as|given)\b", re.IGNORECASE
)
_SPECIAL = re.compile(r"<\|[^|<>]{1,40}\|>")
_LEAD = 120
"""Number of characters before an item that are examined."""
_BOLD_RESULT = re.compile(r"=\s*\*\*([^*\n]{1,40})\*\*")


def stated_answers(text: str, box_rank: int = 50, forms: Sequence[str] = ("latex", "expr")) -> list[str]:
    """Returns the answer in LaTeX, and for boxes side by side also the last box alone; [] if there is none. `box_rank`
    is the option `boxed_match_priority`."""
    text = with_congruences(_BOLD_RESULT.sub(r"= \1 ", _SPECIAL.sub(" ", text)))
    marked = MarkedText(text, reads_latex="latex" in forms, reads_plain="expr" in forms)
    boxes = [box for box in marked.boxes if _is_claimed(marked, box)] if box_rank >= 0 else []
    announced = announced_item(marked, is_box_there=bool(boxes))
    if boxes and (announced is None or box_rank < 50 or (box_rank == 50 and announced.start < boxes[-1].end)):
        return boxed_answers(marked, boxes)
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


def stated_word(text: str) -> str:
    """Returns the `announced_word` of a text."""
    return announced_word(_SPECIAL.sub(" ", text))
