"""Reads calls as DR Tulu writes them: <call_tool name="NAME" PARAMETER="VALUE">TEXT</call_tool>.

The text is the tool's first required parameter. Further attributes are other parameters.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls.found import Found, only_argument, typed

CLOSINGS = ("</call_tool>", "</call>")
"""Texts that end a call."""
_OPEN = re.compile(r'<call_tool\s++(?=name=")')
_ATTRIBUTE = re.compile(r'([\w-]++)="([^"<>]*+)"\s*+')
_CLOSE = re.compile("|".join(map(re.escape, CLOSINGS)))


def find_call_tool(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
    """Yields the calls, also those inside thoughts: models that search while they think are trained with this form.

    Leaves out attributes that are no parameters of the tool. A value is text unless the tool's schema refuses a text
    (`typed`).
    """
    by_name = {tool.name: tool for tool in tools}
    begun = _OPEN.search(text)
    while begun:
        found = _read(text, begun, by_name)
        yield found
        begun = _OPEN.search(text, found.end)


def _read(text: str, begun: re.Match[str], tools: dict[str, ToolDefinition]) -> Found:
    place, attributes = begun.end(), dict[str, str]()
    while attribute := _ATTRIBUTE.match(text, place):
        attributes[attribute[1]] = attribute[2]
        place = attribute.end()
    name = attributes.pop("name", "").strip()
    close, following = _CLOSE.search(text, place), _OPEN.search(text, place)
    first = min(filter(None, (close, following)), key=re.Match.start, default=None)
    end = len(text) if first is None else first.end() if first is close else first.start()
    try:
        if not name:
            raise ValueError("it names no tool")
        if not text.startswith(">", place):
            raise ValueError(f'{name} must be followed by > or by PARAMETER="VALUE", without < and > in the value')
        if close is None or first is not close:
            raise ValueError(f"the call does not end with {CLOSINGS[0]}")
        tool = tools.get(name)
        content = text[place + 1 : close.start()].strip()
        arguments = None if tool is None else _typed(attributes, tool) | only_argument(content, tool)
        return Found(begun.start(), end, name, arguments)
    except ValueError as error:
        return Found(begun.start(), end, name, problem=str(error))


def _typed(attributes: dict[str, str], tool: ToolDefinition) -> dict[str, Any]:
    properties = tool.parameters.get("properties") or {}
    return {name: typed(value, name, tool) for name, value in attributes.items() if name in properties}
