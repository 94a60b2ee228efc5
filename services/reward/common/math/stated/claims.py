"""Claims: whether a text claims the answers that it names, rather than asks, supposes, denies or only restates them."""

import re

from services.reward.common.statements import is_asked, is_governed

_OPENING = re.compile(r"(?:\$|\\\(|\\\[|\*\*)\s?\Z")
_CLOSING = re.compile(r"(?:\$|\\\)|\\\]|\*\*)*")
_NO_CONSEQUENCE = (
    r"(?:(?!\b(?:then|so|thus|hence|therefore|and|but|we|gives?|yields?|gets?|makes?|means?|leaves?)\b)[^.,;:!?\n])"
)
_SUPPOSED = re.compile(
    r"(?:\A|[.!?;:,\n]\s|\b(?:let['’]?s|let us|we|i|you|can|could|may|might|would|but|now|so)\s)\s*"
    r"(?:(?:suppose|assume|imagine|pretend|hypothetically)\b"
    r"|(?:what )?if\b(?=[^.,;:!?\n]*\b(?:answer|result|solution)\b))"
    rf"{_NO_CONSEQUENCE}{{0,80}}\Z",
    re.IGNORECASE,
)
"""A supposition that reaches to the end of the words: suppose the answer is."""
_NAMED = re.compile(
    r"\b(?:the|my|our)\s(?:answer|result|solution)\s(?:is|are|was|be|were|equals)\b[^.,;:!?\n]{0,40}\Z", re.IGNORECASE
)
_HEDGED = re.compile(
    r"(?:\A|[.!?;:,\n]\s|\b(?:so|and|then|thus|it|this)\s)\s*(?:it\s)?(?:seems|appears|looks like)\s"
    r"(?:to me\s)?(?:that\s)?(?:the\s|my\s|our\s)?(?:\w+\s)?\Z",
    re.IGNORECASE,
)
"""A statement that its author is not sure of: it seems that the answer is."""
_DENIED = re.compile(
    r"\b(?:answer|result|solution|total|value|it|that|this)\s(?:(?:is|was|be)\s(?:certainly |clearly |definitely )?not"
    r"|(?:is|was)n['’]t|(?:can['’]t|couldn['’]t|shouldn['’]t|(?:can|could|should)\s?(?:not|never)) be|is never)\s"
    r"(?:equal to )?\Z",
    re.IGNORECASE,
)
_RESTATED = re.compile(
    r"(?:\b(?:expand|simplify|factori[sz]e|evaluat|comput|calculat|differentiat|integrat)(?:e|ing)?"
    r"|(?:\A\W*|\b(?:to|must|should|please)\s)(?:find|determine|solve|factor|work out)"
    r"|\b(?:expansion|simplification|factori[sz]ation|evaluation|derivative|integral|the simpl(?:est|ified) form) of)"
    r"(?:\s+(?:out|the (?:expression|product|sum|value of|quotient|difference)))?[\s$(*:]*\Z",
    re.IGNORECASE,
)
"""Words before an expression that is still to be worked out."""
_WORKED_OUT = re.compile(r"=|\\approx|\A[-+\d.,\s\\%$]*\Z")
_MENTIONED = re.compile(
    r"(?:\b(?:(?<!results )(?<!resulting )in|into|inside|within|using|uses?|an?|empty)\s+|`)[\s$(\"'*`\\]*\Z",
    re.IGNORECASE,
)
"""Words before \\boxed{} that only mention the command."""
_OF_COMMAND = re.compile(r"[\s$)\"'*`\\]*(?:command|notation|format|environment|macro|tags?)\b", re.IGNORECASE)
_QUESTION = re.compile(r"\?[\s*_$)\"]*\Z")
_ASKING = re.compile(
    r"\W*(?:(?:so|but|and|or|then|now|well)\W+)?(?:is|are|was|were|can|could|may|might|will|would|should|do|does|did|what|how"
    r"|why|which|who|where|when)(?:n['’]t)?\b",
    re.IGNORECASE,
)
_YES = re.compile(r"[\s*_\"(]*(?:yes|yep|yeah|indeed|correct|right|exactly|sure)\b", re.IGNORECASE)
_BEFORE = 120


def is_claimed_box(text: str, start: int, end: int) -> bool:
    """Returns whether a text claims the content of its box between two places."""
    start, end = _without_delimiters(text, start, end)
    before = text[max(0, start - _BEFORE) : start]
    return not (_DENIED.search(before) or is_supposed(before) or is_asked(text, start, end))


def is_mentioned(text: str, start: int, end: int) -> bool:
    """Returns whether a text only mentions the blank box between two places: put the answer in \\boxed{}."""
    return bool(_MENTIONED.search(text[max(0, start - 40) : start]) or _OF_COMMAND.match(text, end))


def is_claimed(text: str, start: int, end: int) -> bool:
    """Returns whether a text claims an answer that it announces between two places."""
    return not (_is_governed(text, start) or is_asked(text, start, _without_delimiters(text, start, end)[1]))


def is_supposed(words: str) -> bool:
    """Returns whether the words suppose the next words, or name an answer without claiming it."""
    named = _NAMED.search(words)
    return bool(_SUPPOSED.search(words)) or (named is not None and _is_governed(words, named.start()))


def is_question(text: str, start: int, end: int) -> bool:
    """Returns whether a sentence asks something and is not answered with yes. A sentence without a question word, as in
    "so that makes 3 + 4 = 7?", is a calculation."""
    if not _QUESTION.search(text, max(0, end - 20), end) or _YES.match(text, end):
        return False
    return bool(_ASKING.match(text, start, end)) or "=" not in text[start:end]


def is_restated(words: str, latex: str) -> bool:
    """Returns whether an expression after the words is the question: the expansion of (x+2)(x+3)."""
    return not _WORKED_OUT.search(latex) and bool(_RESTATED.search(words))


def _is_governed(text: str, start: int) -> bool:
    return is_governed(text, start) and not _HEDGED.search(text, max(0, start - _BEFORE), start)


def _without_delimiters(text: str, start: int, end: int) -> tuple[int, int]:
    """Returns the begin and end of the formula around two places."""
    opening = _OPENING.search(text, max(0, start - 6), start)
    closing = _CLOSING.match(text, end)
    return opening.start() if opening else start, closing.end() if closing else end
