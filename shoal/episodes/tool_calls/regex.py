"""Reads calls in a form of the user's own: a regular expression whose groups are the name and the arguments."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from shoal.chat_templates.thoughts import answer_start, next_thought
from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls.found import Finder, Found, arguments_of, only_argument
from shoal.errors import InvalidArgument

_TIMEOUT_S = 1.0


def regex_finder(pattern: str) -> Finder:
    """Returns the finder of a pattern of the package `regex`. A dot in the pattern matches line breaks too.

    The group `name` is the tool's name; without it a prompt must offer exactly one tool. The group `arguments` is a
    JSON object of all arguments, or the group `argument` is the value of the first required parameter. A search that
    takes longer than a second makes the rest of the text a call that cannot be read. Thoughts are not searched.

    Raises `InvalidArgument` for a text that is no pattern, and for a pattern without a group for arguments.
    """
    import regex

    try:
        compiled = regex.compile(pattern, regex.DOTALL)
    except regex.error as error:
        raise InvalidArgument(f"episodes.tool_pattern is no regular expression: {error} (given: {pattern!r})") from None
    groups = set(compiled.groupindex)
    if ("arguments" in groups) == ("argument" in groups):
        raise InvalidArgument(
            "episodes.tool_pattern must have the group (?P<arguments>...), for a JSON object, or (?P<argument>...), "
            f"for one value, but not both groups (given: {pattern!r})"
        )

    def find(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
        end = place = answer_start(text)
        until = time.monotonic() + _TIMEOUT_S
        try:
            while match := compiled.search(text, place, timeout=max(0.001, until - time.monotonic())):
                if thought := next_thought(text, place, match.start()):
                    place = thought[1]
                elif match.end() > match.start():
                    end = place = match.end()
                    yield _read(match, tools)
                else:
                    place = match.end() + 1
        except TimeoutError:
            yield Found(end, len(text), problem="it takes too long to look for calls in it")

    return find


def _read(match: Any, tools: Sequence[ToolDefinition]) -> Found:
    groups = match.groupdict()
    name = (groups.get("name") or (tools[0].name if "name" not in groups and len(tools) == 1 else "")).strip()
    try:
        if not name:
            raise ValueError("it names no tool")
        if "argument" not in groups:
            return Found(match.start(), match.end(), name, arguments_of(groups["arguments"] or ""))
        tool = next((tool for tool in tools if tool.name == name), None)
        value = (groups["argument"] or "").strip()
        return Found(match.start(), match.end(), name, only_argument(value, tool) if tool else None)
    except ValueError as error:
        return Found(match.start(), match.end(), name, problem=str(error))
