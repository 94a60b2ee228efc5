"""Reads calls as tags with a tool's name: <name>content</name>. The content is the tool's first required parameter.

The `legacy` parser of open-instruct reads this form. Of all forms, a small model learns this form first.
"""

import re
from collections.abc import Iterator, Sequence

from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls.found import Found, only_argument


def find_tags(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
    """Yields the calls of the given tools, also those inside thoughts: models that search while they think are trained
    with this form. Tags with other names are not calls."""
    by_name = {tool.name: tool for tool in tools}
    if not by_name:
        return
    opening = re.compile("<(" + "|".join(map(re.escape, by_name)) + ")>")
    begun = opening.search(text)
    while begun:
        found = _read(text, begun, by_name[begun[1]], opening)
        yield found
        begun = opening.search(text, found.end)


def _read(text: str, begun: re.Match[str], tool: ToolDefinition, opening: re.Pattern[str]) -> Found:
    closing = f"</{tool.name}>"
    close = text.find(closing, begun.end())
    if close < 0:
        following = opening.search(text, begun.end())
        end = following.start() if following else len(text)
        return Found(begun.start(), end, tool.name, problem=f"the call does not end with {closing}")
    end = close + len(closing)
    try:
        return Found(begun.start(), end, tool.name, only_argument(text[begun.end() : close].strip(), tool))
    except ValueError as error:
        return Found(begun.start(), end, tool.name, problem=str(error))
