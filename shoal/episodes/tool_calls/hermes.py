"""Reads calls as Hermes and Qwen2.5 write them: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

import re
from collections.abc import Iterator, Sequence

from shoal.chat_templates.thoughts import answer_start
from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls.found import Found, call_in_json, end_unread, read_json_at, search_outside, skip_space

_CLOSE = "</tool_call>"
_OPENING = re.compile("<tool_call>")


def find_hermes(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
    """Yields the calls after the policy's thoughts. A call ends where its JSON ends, which may contain the tags as
    text; a call whose JSON cannot be read ends at the next tag, so that later calls are read."""
    begun = search_outside(_OPENING, text, answer_start(text))
    while begun:
        found = _read(text, begun.start(), begun.end())
        yield found
        begun = search_outside(_OPENING, text, found.end)


def _read(text: str, start: int, inside: int) -> Found:
    inside = skip_space(text, inside)
    try:
        value, inside = read_json_at(text, inside, start)
        end = skip_space(text, inside)
        if not text.startswith(_CLOSE, end):
            end = end_unread(text, end, _CLOSE, _OPENING)
            return Found(start, end, problem=f"the call does not end with {_CLOSE} behind its JSON")
        name, arguments = call_in_json(value, ["arguments"])
        return Found(start, end + len(_CLOSE), name, arguments)
    except ValueError as error:
        return Found(start, end_unread(text, inside, _CLOSE, _OPENING), problem=str(error))
