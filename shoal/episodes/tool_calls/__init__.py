"""Tool calls in the text of a policy's turn, with one parser for each form in which models write calls.

A parser never raises: a text that looks like a call but cannot be read becomes a call whose status reports the fault.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from shoal.conversation import ToolCall, ToolCallStatus, ToolDefinition
from shoal.episodes.tool_calls.call_tool import CLOSINGS, find_call_tool
from shoal.episodes.tool_calls.found import MAX_CALLS, Finder, Found
from shoal.episodes.tool_calls.gemma4 import find_gemma4
from shoal.episodes.tool_calls.harmony import find_harmony
from shoal.episodes.tool_calls.hermes import find_hermes
from shoal.episodes.tool_calls.json_lists import find_mistral, find_phi4_mini
from shoal.episodes.tool_calls.llama3_json import find_llama3_json
from shoal.episodes.tool_calls.pythonic import find_pythonic
from shoal.episodes.tool_calls.regex import regex_finder
from shoal.episodes.tool_calls.schemas import check_tools, problem_of
from shoal.episodes.tool_calls.tag import find_tags
from shoal.episodes.tool_calls.xml_parameters import find_glm, find_qwen3_xml
from shoal.errors import InvalidArgument

__all__ = ["PARSERS", "ParsedTurn", "Parser", "check_tools", "make_parser", "stop_strings"]

_MAX_DETAIL_CHARS = 300
_FINDERS: dict[str, Finder] = {
    "call_tool": find_call_tool,
    "gemma4": find_gemma4,
    "glm": find_glm,
    "harmony": find_harmony,
    "hermes": find_hermes,
    "llama3_json": find_llama3_json,
    "mistral": find_mistral,
    "phi4_mini": find_phi4_mini,
    "pythonic": find_pythonic,
    "qwen3_xml": find_qwen3_xml,
    "tag": find_tags,
}
PARSERS = (*_FINDERS, "regex")
"""The names of the forms in which tool calls are written."""


@dataclass(frozen=True)
class ParsedTurn:
    """The content and the tool calls of a policy's turn."""

    content: str
    """The text without the tool calls; the whole text if there are no calls."""
    calls: tuple[ToolCall, ...]


class Parser(Protocol):
    """Parses the text of a turn."""

    def __call__(
        self, text: str, tools: Sequence[ToolDefinition], turn: int, withheld: Sequence[ToolDefinition] = ()
    ) -> ParsedTurn:
        """Returns the content and the tool calls of a turn.

        `text` keeps special tokens, except the end of the turn. The ids of the calls contain the number `turn`. The
        prompt offers `tools`; a call of a `withheld` tool counts as a call of an unknown tool.
        """


def make_parser(name: str, pattern: str = "") -> Parser:
    """Returns the parser of a form. Only the form "regex" uses `pattern`. Raises `InvalidArgument` for an unknown form,
    and for a pattern that cannot be used."""
    if name not in PARSERS:
        raise InvalidArgument(f"unknown parser of tool calls {name!r}; the parsers are {', '.join(PARSERS)}")
    return partial(_parse, regex_finder(pattern) if name == "regex" else _FINDERS[name])


def stop_strings(name: str, tools: Sequence[ToolDefinition]) -> tuple[str, ...]:
    """Returns the texts that end a turn, in addition to the policy's own end of the turn."""
    if name == "call_tool":
        return CLOSINGS if tools else ()
    return tuple(f"</{tool.name}>" for tool in tools) if name == "tag" else ()


def _parse(
    find: Finder, text: str, tools: Sequence[ToolDefinition], turn: int, withheld: Sequence[ToolDefinition] = ()
) -> ParsedTurn:
    calls: list[ToolCall] = []
    content: list[str] = []
    end = 0
    for found in find(text, [*tools, *withheld]):
        if len(calls) == MAX_CALLS:
            found = Found(found.start, len(text), problem=f"a turn may have {MAX_CALLS} calls; the rest was not read")
        content.append(text[end : found.start])
        end = found.end
        calls.append(_check(found, text, tools, f"call{turn:03d}{len(calls) + 1:02d}"))
        if end == len(text):
            break
    content.append(text[end:])
    return ParsedTurn("".join(content).strip() if calls else text, tuple(calls))


def _check(found: Found, text: str, tools: Sequence[ToolDefinition], call_id: str) -> ToolCall:
    """Returns the call with its status."""
    tool = next((tool for tool in tools if tool.name == found.name), None)
    status, detail = ToolCallStatus.OK, ""
    if found.problem:
        status, detail = ToolCallStatus.MALFORMED, f"The call cannot be read: {found.problem}."
    elif tool is None:
        names = ", ".join(tool.name for tool in tools)
        there_are = f"the tools are: {names}" if names else "no tool is offered"
        status, detail = ToolCallStatus.UNKNOWN_TOOL, f"There is no tool {found.name!r:.60}; {there_are}."
    elif problem := problem_of(found.arguments or {}, tool):
        status, detail = ToolCallStatus.BAD_ARGUMENTS, f"The arguments do not fit {tool.name}: {problem}."
    return ToolCall(
        id=call_id,
        name=found.name,
        arguments_json="" if found.arguments is None else json.dumps(found.arguments, ensure_ascii=False),
        status=status,
        raw=text[found.start : found.end],
        detail=detail if len(detail) <= _MAX_DETAIL_CHARS else f"{detail[: _MAX_DETAIL_CHARS - 3]}...",
    )
