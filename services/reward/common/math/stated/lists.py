"""Items that form one answer: alternatives, elements of a list, quantities of two units."""

import re
from dataclasses import replace
from itertools import pairwise

from services.reward.common.math import restated
from services.reward.common.math.marks import states_order
from services.reward.common.math.stated.items import Item, MarkedText
from services.reward.common.math.stated.remarks import PART, REMARK

_NO_NOUN = "and or to but so as if for in is by of on at plus minus times because since which that when where"
_CONNECTED = re.compile(
    rf"(?:\s+(?!(?:{_NO_NOUN.replace(' ', '|')})\b)[a-z]+){{0,2}}"
    r"[\s,;(*]*(?:(?:and/or|and|or|but|to|through|&|\\text\{\s*(?:and|or)\s*\}|\\lor|\\quad)[\s,;]*)?"
    r"(?:(?:maybe|perhaps|possibly|also|even|alternatively|it|could|might|may|be|either|else|both|is|then|again)\b[\s,]*"
    r"|\*|\\quad|\s)*",
    re.IGNORECASE,
)
_LINK = re.compile(r"[,;&]|\b(?:and|or|to|through|alternatively|possibly|maybe|perhaps)\b|\\lor", re.IGNORECASE)
_AND_OR = re.compile(r"\b(?:and|or)\b", re.IGNORECASE)
CONTINUED = re.compile(r"\s*(?:[+*/=]|-\s|\\(?:times|cdot|div)(?![a-zA-Z]))")
"""The beginning of an item that continues the previous item."""
_COMPUTED = re.compile(r"[^=a-zA-Z,]{0,80}[0-9)}]\s*(?:[-+*/]|\\(?:times|cdot|div)\s)[^=a-zA-Z,]{0,80}=")
"""A calculation with its result, which is not an element of a list: of 6, 6/2 = 3."""

_ABOUT = r"(?P<about>(?:about|approximately|approx\.|roughly|nearly|around)\s)"
_RESTATED = re.compile(
    r"[\s,;($]*(?:(?:or|i\.e\.|that is|equivalently|namely|in other words|which (?:is|equals))[\s,:$]*"
    rf"{_ABOUT}?|{_ABOUT.replace('about>', 'only>')})[\s$(]*",
    re.IGNORECASE,
)
"""Words between two forms of an answer: 10 minutes, or 600 seconds; 2/3, or about 66.7%."""


def with_alternatives(marked: MarkedText, items: list[Item]) -> Item:
    """Returns the first item, joined with the items that list words connect to it, as one answer. The first of several
    forms of an amount (10 minutes, or 600 seconds) is the answer."""
    if answer := _in_several_forms(marked, items):
        return answer
    group = [items[0]]
    for item in items[1:]:
        is_other = are_connected(marked, group[-1], item) or _are_restated(marked, group, [item]) is False
        if item.is_denied or not is_other:
            break
        group.append(item)
    return _joined(marked, group)


def _in_several_forms(marked: MarkedText, items: list[Item]) -> Item | None:
    """Returns the first item with its other forms; None if it has none, or an alternative of another amount."""
    size = _size_of_quantity(marked, items)
    answer, rest, others = items[:size], items[size:], list[str]()
    while rest and not rest[0].is_denied:
        size = _size_of_quantity(marked, rest)
        if not _are_restated(marked, answer, rest[:size], last=items[len(items) - len(rest) - 1]):
            break
        others.append(_joined(marked, rest[:size]).latex)
        rest = rest[size:]
    last = items[len(items) - len(rest) - 1]
    if not others or (rest and are_connected(marked, last, rest[0])):
        return None
    return replace(_joined(marked, answer), end=last.end, others=tuple(others))


def _are_restated(marked: MarkedText, answer: list[Item], other: list[Item], last: Item | None = None) -> bool | None:
    """Returns whether words call both the same amount, and they are; None without such words, or if they are not. Only
    a wrong "about" is False."""
    words = _RESTATED.fullmatch(marked.text[(last or answer[-1]).end : other[0].start])
    if words is None:
        return None
    is_about = bool(words["about"] or words["only"])
    one, two = (restated.sum_of([item.latex for item in items]) for items in (answer, other))
    if one is None or two is None:
        return None
    if restated.agree(one, two, restated.is_rounded if is_about else restated.is_same):
        return True
    return False if is_about and restated.agree(one, two, restated.is_near) is False else None


def _size_of_quantity(marked: MarkedText, items: list[Item]) -> int:
    """Returns the number of items in the first quantity: two in 3 hours 20 minutes."""
    for size, (one, other) in enumerate(pairwise(items), start=1):
        have_units = "\\text" in one.latex and "\\text" in other.latex
        if not have_units or _between(marked, one, other).strip(" ,"):
            return size
    return len(items)


def _joined(marked: MarkedText, items: list[Item]) -> Item:
    latex = items[0].latex
    for one, other in pairwise(items):
        latex += joint(one.latex, _between(marked, one, other), other.latex) + other.latex
    return replace(items[0], end=items[-1].end, latex=latex)


def joint(one: str, between: str, other: str) -> str:
    """Returns a comma, or the word "and" or "or" between two inequalities, to join two answers."""
    word = _AND_OR.search(between)
    return f" \\text{{ {word[0].lower()} }} " if word and states_order(one) and states_order(other) else ", "


def _between(marked: MarkedText, one: Item, other: Item) -> str:
    return marked.text[one.end : other.start]


def are_connected(marked: MarkedText, one: Item, other: Item) -> bool:
    """Returns whether two items form one answer: a list, or a quantity of two units (3 hours 20 minutes)."""
    between = _between(marked, one, other)
    if (
        CONTINUED.match(other.latex)
        or one.latex.endswith("/}")
        or PART.match(marked.text, other.end)
        or (_COMPUTED.match(other.latex) and "=" not in one.latex)
    ):
        return False
    if not between.strip() and "\n" not in between:
        return "\\text" in one.latex and "\\text" in other.latex
    return bool(_CONNECTED.fullmatch(between) and _LINK.search(between)) and not REMARK.match(between)
