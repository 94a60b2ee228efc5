"""The program in a completion."""

import re
from dataclasses import dataclass

_PYTHON_TAG = "python"
_WORD = re.compile(r"[A-Za-z0-9_+.#-]*\Z")
# Backticks, and the rest of their line.
_FENCE = re.compile(r"(?<!`)(?P<ticks>`{3,}+)(?P<info>[^`\n]*+)$", re.MULTILINE)
_TAG = re.compile(r"\s*(?:[A-Za-z][\w+.#-]*(?<!\.))?\s*\Z")
_INDENT = re.compile(r"[ \t]*(?:(?:[-*+]|\d+[.)])[ \t]+)*\Z")
# Backticks, and the parts of Python that may contain them: comments, and strings (to the end of the line or text).
_PYTHON = re.compile(
    r"#[^\n]*"
    r"|'''(?:\\.|[^\\])*?(?:'''|(?P<cut>\Z))"
    r'|"""(?:\\.|[^\\])*?(?:"""|(?P<cut_too>\Z))'
    r"|'(?:\\.|[^\\'\n])*'?"
    r'|"(?:\\.|[^\\"\n])*"?'
    r"|(?P<ticks>`{3,})(?P<info>[^`\n]*)",
    re.DOTALL,
)
_SPAN = re.compile(r"```(.*?)```", re.DOTALL)
_MAX_MISSES = 8
"""Maximum number of misses. Each miss reads the rest of the text, which may have thousands of blocks."""


def program_text(completion: str, *, any_tag: bool = False) -> str:
    """Returns the last block between triple backticks, or the whole text if there is none; empty if it is cut off.

    Backticks in the program's strings and comments do not end it. Drops the tag "python" right after the opening
    backticks. Any other tag, or a tag after a space, stays and breaks the program, as in open-instruct; `any_tag` drops
    any single word on the opening line.
    """
    if "```" not in completion or _is_python(completion):
        return completion.strip()
    block = _last_block(completion)
    # A text without blocks may have spans, as in ```f = abs```.
    texts = [block.text] if block else _SPAN.findall(completion)
    if not texts:
        return completion.strip()
    first_line, newline, rest = texts[-1].partition("\n")
    if any_tag and newline and _WORD.match(first_line.strip()):
        return rest.strip()
    return texts[-1].removeprefix(_PYTHON_TAG).strip()


@dataclass(frozen=True)
class _Block:
    text: str
    """The text after the opening backticks; empty if the block is cut off."""
    end: int


def _is_python(text: str) -> bool:
    """Returns whether the text is a program without fences, whose strings and comments have all its backticks."""
    return not any(
        match["ticks"] or match["cut"] is not None or match["cut_too"] is not None for match in _PYTHON.finditer(text)
    )


def _last_block(text: str) -> _Block | None:
    last: _Block | None = None
    num_misses = position = 0
    while opening := _opening(text, position, last):
        closing = _closing_in_python(text, opening) if num_misses < _MAX_MISSES else None
        if closing is None:
            num_misses += 1
            closing = _closing_line(text, opening)
        if closing is None:
            return _Block("", len(text))
        if _opens(text, closing):
            # The previous block was never closed.
            position = closing.start()
            continue
        last = _Block(_content(text, opening, closing), closing.end("ticks"))
        position = last.end
    return last


def _opening(text: str, position: int, last: _Block | None) -> re.Match[str] | None:
    """Returns the next backticks that begin a block: they are at the start of a line, or only a tag follows them."""
    for fence in _FENCE.finditer(text, position):
        begins_line = _INDENT.match(_before(text, fence)) is not None
        if not begins_line and not _TAG.match(fence["info"]):
            continue
        is_stray = not begins_line or last is None or not text[last.end : fence.start()].strip()
        if is_stray and not text[fence.end("ticks") :].strip():
            continue
        return fence
    return None


def _opens(text: str, fence: re.Match[str]) -> bool:
    """Returns whether backticks outside of the program begin another block."""
    info = fence["info"]
    return not _before(text, fence).strip() and not info[:1].isspace() and bool(info) and _TAG.match(info) is not None


def _closing_in_python(text: str, opening: re.Match[str]) -> re.Match[str] | None:
    """Returns the next backticks outside of strings and comments; None if strings cannot be recognized."""
    num_ticks = len(opening["ticks"])
    for match in _PYTHON.finditer(text, opening.start("info")):
        if len(match["ticks"] or "") >= num_ticks:
            return match
        if "```" in match[0] and not _are_pairs(match[0]):
            return None
    return None


def _are_pairs(string: str) -> bool:
    """Returns whether each block in a string ends before the next begins. Else its quotes are of different blocks."""
    is_open = False
    for fence in _FENCE.finditer(string):
        begins_line, has_tag = not _before(string, fence).strip(), bool(fence["info"].strip())
        if begins_line and is_open and has_tag:
            return False
        if begins_line:
            is_open = not is_open
    return True


def _closing_line(text: str, opening: re.Match[str]) -> re.Match[str] | None:
    """Returns the next backticks that end a line."""
    num_ticks = len(opening["ticks"])
    fences = _FENCE.finditer(text, opening.end())
    return next((fence for fence in fences if len(fence["ticks"]) >= num_ticks and _TAG.match(fence["info"])), None)


def _content(text: str, opening: re.Match[str], closing: re.Match[str]) -> str:
    """Returns the text between two fences, without the indent of the first fence."""
    before = _before(text, opening)
    content = text[opening.start("info") : closing.start()]
    width = len(before) if _INDENT.match(before) else 0
    return re.sub(rf"(?m)(?<=\n)[ \t]{{1,{width}}}", "", content) if width else content


def _before(text: str, fence: re.Match[str]) -> str:
    """Returns the text before backticks on their line."""
    return text[text.rfind("\n", 0, fence.start()) + 1 : fence.start()]
