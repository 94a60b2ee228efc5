"""Reads calls written as Python: [search(query="K2"), now()].

The list is the whole answer. Olmo 3 writes one call on each line, between <function_calls> and its closing tag, and
Gemma 3 between ```tool_code and ```. No code is run: Python's grammar reads a call, and the arguments must be literals.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from shoal.chat_templates.thoughts import answer_start, next_thought
from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls.found import MAX_CALLS, Found, check_json, search_outside
from shoal.episodes.tool_calls.literals import literal_of
from shoal.parsing import parse_python

_CLOSES = {"<function_calls>": "</function_calls>", "```tool_code": "```"}
_OPENING = re.compile(r"<function_calls>|```tool_code(?!\w)")
_MAX_CHARS = 200_000
"""The longest call, in characters. Python's parser needs a hundred times the memory of the text."""
_CALL = re.compile(r"([A-Za-z_][\w.]*+)\(")
_LIST = re.compile(r"\s*+\[\s*+(?=[A-Za-z_][\w.]*+\()")
_SPACE = re.compile(r"[\s,;]*+")
_BEHIND = re.compile(r"[^\S\n]*+(?:[,;\n]|$)")
_PARTS = re.compile(r"""\"\"\"|'''|["']|[(\[{]|[)\]}]""")
_STRING_ENDS = {
    '"""': re.compile(r'(?:[^"\\]|\\.|"(?!""))*"""', re.DOTALL),
    "'''": re.compile(r"(?:[^'\\]|\\.|'(?!''))*'''", re.DOTALL),
    '"': re.compile(r'[^"\\\n]*(?:\\.[^"\\\n]*)*"', re.DOTALL),
    "'": re.compile(r"[^'\\\n]*(?:\\.[^'\\\n]*)*'", re.DOTALL),
}


def find_pythonic(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
    """Yields the calls after the policy's thoughts. A call whose end cannot be found ends before the next line, or the
    next item of the list, that begins with the name of a tool."""
    names = "|".join(re.escape(tool.name) for tool in tools) or "(?!)"
    call = rf"[^\S\n]*+(?=(?:print\()?(?:{names})\()"
    start = answer_start(text)
    block = search_outside(_OPENING, text, start)
    if block is None and (beginning := _LIST.match(text, start)):
        thought = next_thought(text, beginning.end(), len(text))
        end = len(text[: thought[0] if thought else len(text)].rstrip())
        is_closed = text[end - 1] == "]"
        calls = _read_all(text, beginning.end(), end - is_closed, re.compile(rf"[,\n]{call}"))
        yield from _with_ends(calls, start, len(text), "" if is_closed else "the list of calls does not end with ]")
    while block:
        closing = _CLOSES[block[0]]
        close = text.find(closing, block.end())
        end = close if close >= 0 else len(text)
        behind = end + len(closing) if close >= 0 else end
        calls = _read_all(text, block.end(), end, re.compile(rf"\n{call}"))
        yield from _with_ends(
            calls, block.start(), behind, "" if close >= 0 else f"the calls do not end with {closing}"
        )
        block = search_outside(_OPENING, text, behind)


def _with_ends(calls: list[Found], start: int, end: int, problem: str) -> list[Found]:
    """Returns the calls of a block, extended by the marks around it. `problem` states what the block's end lacks."""
    if not calls:
        return [Found(start, end, problem=problem or "there is no call")]
    calls[0] = replace(calls[0], start=start)
    last = calls[-1]
    calls[-1] = replace(last, end=end, problem=last.problem or problem, arguments=None if problem else last.arguments)
    return calls


def _read_all(text: str, place: int, end: int, following: re.Pattern[str]) -> list[Found]:
    calls: list[Found] = []
    place = _skip(text, place, end)
    while place < end and len(calls) <= MAX_CALLS:
        found = _read(text, place, end, following)
        place = _skip(text, found.end, end)
        calls.append(replace(found, end=place))
    return calls


def _skip(text: str, place: int, end: int) -> int:
    found = _SPACE.match(text, place, end)
    return found.end() if found else place


def _read(text: str, start: int, end: int, following: re.Pattern[str]) -> Found:
    begun = _CALL.match(text, start, end)
    close = _closing(text, begun.end(), min(end, begun.end() + _MAX_CHARS)) if begun else None
    if begun is None or close is None or not _BEHIND.match(text, close, end):
        recovery = following.search(text, start + 1, end)
        problem = f"it has no end, or more than {_MAX_CHARS} characters" if begun else "it is not NAME(PARAMETER=VALUE)"
        if close is not None:
            problem = f"behind it stands {text[close : close + 20]!r}"
        return Found(start, recovery.start() if recovery else end, begun[1] if begun else "", problem=problem)
    try:
        return Found(start, close, *_call_in(text[start:close]))
    except ValueError as error:
        return Found(start, close, begun[1], problem=str(error))


def _closing(text: str, place: int, end: int) -> int | None:
    """Returns the index after the bracket that closes an open bracket; None if no bracket closes it."""
    depth = 1
    while part := _PARTS.search(text, place, end):
        place = part.end()
        if ends := _STRING_ENDS.get(part[0]):
            string = ends.match(text, place, end)
            if string is None:
                return None
            place = string.end()
        else:
            depth += 1 if part[0] in "([{" else -1
            if depth == 0:
                return place
    return None


def _call_in(text: str) -> tuple[str, dict[str, Any]]:
    """Returns the name and the arguments of a call, alone or inside print(...). Raises `ValueError` if they cannot be
    read."""
    (statement,) = parse_python(text).body
    node, name = statement.value if isinstance(statement, ast.Expr) else None, text.partition("(")[0]
    match node:
        case ast.Call(func=ast.Name(id="print"), args=[ast.Call() as printed], keywords=[]):
            node, name = printed, ast.get_source_segment(text, printed.func) or ""
    if not isinstance(node, ast.Call):
        raise ValueError("it is no call")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("the arguments must be given by name, NAME(PARAMETER=VALUE)")
    arguments = {str(keyword.arg): literal_of(keyword.value) for keyword in node.keywords}
    if len(arguments) < len(node.keywords):
        raise ValueError("an argument is given twice")
    check_json(arguments)
    return name, arguments
