"""Boxes, \\boxed{...}, and formulas between LaTeX's delimiters: their places in a text, and their contents."""

import re
from dataclasses import dataclass

_BOXED = re.compile(r"\\boxed(?![a-zA-Z])")
_BRACE = re.compile(r"[{}]")
_SPACE = re.compile(r"\s*")
_BARE = re.compile(r"[ \t]+([^\s${}\\][^\s$}]*)")

_BLANK = re.compile(
    r"(?:[\s{}_?.…$*~]|\\(?:[,;:! _]|(?:text[a-z]{0,6}|mathrm|mathbf|mbox|underline|[lc]?dots|square|Box|q?quad|boxed)"
    r"(?![a-zA-Z])|(?:[hv]?phantom|[hv]space\*?)\s*\{[^{}]*\}))*"
)
"""The content of a blank box: nothing, or only signs for something left out."""
_DELIMITER = re.compile(
    r"(?<!\\)\$\$|(?<!\\)\$|\\\(|\\\)|(?<!\\)\\\[|\\\]|\n"
    r"|\\(?:begin|end)\{(?:align|equation|gather|eqnarray|multline|displaymath)\*?\}"
)
_CLOSING = {"$$": "$$", "$": "$", "\\(": "\\)", "\\[": "\\]"}
_AMOUNT = re.compile(r"\s?[0-9]")


@dataclass(frozen=True)
class Box:
    start: int
    end: int
    content: str
    is_cut_off: bool = False
    """Whether the text ends within the box."""

    @property
    def is_blank(self) -> bool:
        """Whether the box holds nothing, or only signs for something left out."""
        return bool(_BLANK.fullmatch(self.content))


def find_boxes(text: str) -> list[Box]:
    """Returns the outer boxes in order. A \\boxed without braces or a number after it is no box. A box that lacks only
    its last brace is whole. A box that is cut off elsewhere reaches to the end of the text."""
    found: list[Box] = []
    ends = _ends_of_braces(text)
    position = 0
    while command := _BOXED.search(text, position):
        opened = _SPACE.match(text, command.end()).end()  # type: ignore[union-attr]
        if not text.startswith("{", opened):
            bare = _BARE.match(text, command.end())
            if bare and any(character.isdigit() for character in bare[1]):  # \boxed 7
                found.append(Box(command.start(), bare.end(), bare[1].rstrip(".,;")))
            position = bare.end() if bare else command.end()
        elif opened in ends:
            position = ends[opened]
            found.append(Box(command.start(), position, text[opened + 1 : position - 1].strip()))
        elif _BOXED.search(text, opened):
            position = opened + 1
        else:
            content = text[opened + 1 :].strip()
            whole = content.endswith("}") and content.count("{") == content.count("}")
            return [*found, Box(command.start(), len(text), content, is_cut_off=not whole)]
    return found


def _ends_of_braces(text: str) -> dict[int, int]:
    """Returns the end of each group of braces by its start."""
    ends, opened = {}, []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            ends[opened.pop()] = brace.end()
    return ends


@dataclass(frozen=True)
class Formula:
    start: int
    end: int
    content: str


def find_formulas(text: str) -> list[Formula]:
    """Returns the formulas in order. A formula between single dollars or \\( and \\) ends on its line; "$5 and $7" are
    amounts."""
    found: list[Formula] = []
    opened: re.Match[str] | None = None
    for delimiter in _DELIMITER.finditer(text):
        sign = delimiter[0]
        if opened is not None and sign == _closing(opened[0]):
            if _is_amount(text, opened, delimiter):
                opened = delimiter
            else:
                found.append(Formula(opened.start(), delimiter.end(), text[opened.end() : delimiter.start()]))
                opened = None
        elif opened is None or (sign == "\n" and opened[0] in ("$", "\\(")):
            opened = delimiter if _opens(text, delimiter) else None
    return found


def _closing(sign: str) -> str:
    return _CLOSING.get(sign) or sign.replace("\\begin", "\\end")


def _opens(text: str, delimiter: re.Match[str]) -> bool:
    sign = delimiter[0]
    if sign in ("$", "$$"):
        return not text[max(0, delimiter.start() - 1) : delimiter.start()].isdigit()
    return sign in _CLOSING or sign.startswith("\\begin")


def _is_amount(text: str, opened: re.Match[str], closed: re.Match[str]) -> bool:
    """Returns whether two single dollars stand before amounts: "$10 and $15"."""
    return opened[0] == "$" and bool(_AMOUNT.match(text, opened.end())) and text[closed.end() :][:1].isdigit()
