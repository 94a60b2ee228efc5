"""What is said beside an answer: checks, reasons, remarks and asides."""

import re

from services.reward.common.math.stated.items import Item, MarkedText

CHECK = re.compile(
    r"\b(?:check(?:ing|s|ed)?|verif\w+|confirm\w*|substitut\w+|plug\w*|test(?:ing)?|double-check\w*|sanity|remark|note"
    r"|indeed|because|since|recall|proof|explanation|reason)\b",
    re.IGNORECASE,
)
"""Words of a check or a reason, in which no answer is stated."""
REASON = re.compile(
    r"\b(?:note|remark|because|since|recall|proof|explanation|reason|require[sd]?|where|if|common|think|expect|guess|tempted)\b[^.!?\n]*\Z",
    re.IGNORECASE,
)
"""A reason or a supposition that goes on to the end of the text before an answer."""
CHECK_SENTENCE = re.compile(
    r"\s*\**\(?(?:(?:(?:as|to|let me|let's|we can|i|quick|sanity|double)[\s-]*)?(?:a )?(?:check|verif|confirm)"
    r"|indeed\b|note\b|remark\b|(?:because|since)\b[^,]*\Z|this is because|proof\b|recall\b|explanation\b"
    r"|substituting|plugging)",
    re.IGNORECASE,
)
"""The beginning of a sentence that checks or explains."""
REMARK = re.compile(
    r"^[\s$]*[,(]?\s*(?:or\s+|i\.e\.,?\s+|that is,?\s+)?"
    r"(?:about|approximately|approx\.?|roughly|nearly|equivalently|i\.e\.,?|that is,?|namely|"
    r"instead of|rather than|and not|not|as|since|because|when|where|for|if|given|at"
    r"|(?:and )?(?:which |that |it |this )?(?:(?:is )?(?:attained|achieved|reached)|is|occurs?)\s+"
    r"(?:about|approximately|roughly|at|when|for|if))\s*$",
    re.IGNORECASE,
)
"""Words between an answer and a remark on it: 1/6, or about 16.7%."""
_LETTER = re.compile(r"[a-zA-Z]")
_IN_BRACKETS = re.compile(r"\s\((?![^()]*\bor\b)[^()]*\Z")


def is_aside(marked: MarkedText, items: list[Item]) -> bool:
    """Returns whether the last item is a remark on the one before, in brackets behind it, or its letter again."""
    before, last = items[-2:]
    between = marked.text[before.end : last.start]
    is_letter = bool(_LETTER.fullmatch(last.latex)) and before.latex.startswith((f"{last.latex}=", f"{last.latex} ="))
    return is_letter or bool(REMARK.search(between) or _IN_BRACKETS.search(marked.text[items[0].end : last.start]))
