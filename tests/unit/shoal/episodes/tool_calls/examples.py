"""Tools that the tests of the parsers offer, and short forms of what they find."""

from typing import Any

from shoal.conversation import ToolCallStatus, ToolDefinition
from shoal.episodes.tool_calls import ParsedTurn, make_parser

SEARCH = ToolDefinition(
    "search", "Finds pages.",
    {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
     "required": ["query"], "additionalProperties": False},
)  # fmt: skip
ADD = ToolDefinition(
    "add", "Adds.",
    {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]},
)  # fmt: skip
NOW = ToolDefinition("now", "Tells the time.", {"type": "object", "properties": {}})
TOOLS = [SEARCH, ADD, NOW]
OK, MALFORMED = ToolCallStatus.OK, ToolCallStatus.MALFORMED
UNKNOWN_TOOL, BAD_ARGUMENTS = ToolCallStatus.UNKNOWN_TOOL, ToolCallStatus.BAD_ARGUMENTS


def parse(form: str, text: str, tools: list[ToolDefinition] = TOOLS, **settings: Any) -> ParsedTurn:
    return make_parser(form, **settings)(text, tools, 1)


def brief(turn: ParsedTurn) -> list[tuple[str, str, ToolCallStatus]]:
    return [(call.name, call.arguments_json, call.status) for call in turn.calls]
