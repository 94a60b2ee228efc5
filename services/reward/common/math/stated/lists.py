"""Items that are one answer: alternatives, elements of a list, quantities of two units."""

import re

from services.reward.common.math.stated.items import Item, MarkedText
from services.reward.common.math.stated.remarks import REMARK

_NO_NOUN = "and or to but so as if for in is by of on at plus minus times because since which that when where"
_CONNECTED = re.compile(
    rf"(?:\s+(?!(?:{_NO_NOUN.replace(' ', '|')})\b)[a-z]+){{0,2}}"
    r"[\s,;(*]*(?:(?:and/or|and|or|but|to|through|&|\\text\{\s*(?:and|or)\s*\}|\\lor|\\quad)[\s,;]*)?"
    r"(?:(?:maybe|perhaps|possibly|also|even|alternatively|it|could|might|may|be|either|else|both|is|then|again)\b[\s,]*"
    r"|\*|\\quad|\s)*",
    re.IGNORECASE,
)
_LINK = re.compile(r"[,;&]|\b(?:and|or|to|through|alternatively|possibly|maybe|perhaps)\b|\\lor", re.IGNORECASE)
CONTINUED = re.compile(r"\s*(?:[+*/=]|-\s|\\(?:times|cdot|div)(?![a-zA-Z]))")
"""The beginning of an item that goes on with the one before."""
_COMPUTED = re.compile(r"[^=a-zA-Z,]{0,80}[0-9)}]\s*(?:[-+*/]|\\(?:times|cdot|div)\s)[^=a-zA-Z,]{0,80}=")
"""A calculation and its result, which are no element of a list: of 6, 6/2 = 3."""


def with_alternatives(marked: MarkedText, items: list[Item]) -> Item:
    """Returns the first item and those that words of a list connect with it, as one answer."""
    group = [items[0]]
    for item in items[1:]:
        if item.is_denied or not are_connected(marked, group[-1], item):
            break
        group.append(item)
    return Item(group[0].start, group[-1].end, ", ".join(item.latex for item in group))


def are_connected(marked: MarkedText, one: Item, other: Item) -> bool:
    """Returns whether two items are one answer: a list, or a quantity of two units, 3 hours 20 minutes."""
    between = marked.text[one.end : other.start]
    if (
        CONTINUED.match(other.latex)
        or one.latex.endswith("/}")
        or (_COMPUTED.match(other.latex) and "=" not in one.latex)
    ):
        return False
    if not between.strip() and "\n" not in between:
        return "\\text" in one.latex and "\\text" in other.latex
    return bool(_CONNECTED.fullmatch(between) and _LINK.search(between)) and not REMARK.match(between)
