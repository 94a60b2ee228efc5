"""Calls as Hermes and Qwen2.5 write them: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from collections.abc import Iterator, Sequence

from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls.found import Found, behind_thoughts, call_in_json, read_json_at

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def find_hermes(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
    """Yields the calls behind the policy's thoughts.

    A call ends where its JSON does, which may contain the tags as text. One whose JSON cannot be read ends at the next
    tag, so that the calls behind it are read.
    """
    start = text.find(_OPEN, behind_thoughts(text))
    while start >= 0:
        found = _read(text, start)
        yield found
        start = text.find(_OPEN, found.end)


def _read(text: str, start: int) -> Found:
    inside = _skip_space(text, start + len(_OPEN))
    try:
        value, inside = read_json_at(text, inside)
        end = _skip_space(text, inside)
        if not text.startswith(_CLOSE, end):
            return Found(start, _next_tag(text, end), problem=f"the call does not end with {_CLOSE} behind its JSON")
        name, arguments = call_in_json(value, ["arguments"])
        return Found(start, end + len(_CLOSE), name, arguments)
    except ValueError as error:
        return Found(start, _next_tag(text, inside), problem=str(error))


def _skip_space(text: str, start: int) -> int:
    while text[start : start + 1].isspace():
        start += 1
    return start


def _next_tag(text: str, start: int) -> int:
    """Returns where a call that cannot be read ends: behind its closing tag, or before the next call."""
    close, following = text.find(_CLOSE, start), text.find(_OPEN, start)
    if close >= 0 and (following < 0 or close < following):
        return close + len(_CLOSE)
    return following if following >= 0 else len(text)
