"""Reads calls as gpt-oss writes them, in messages to a tool: <|channel|>commentary to=functions.NAME<|message|>{...}.

A turn has several messages. <|start|>assistant begins each, except the first, which the prompt has begun. Thoughts and
the answer are messages without a recipient.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls.found import Found, arguments_of, read_json_at, skip_space

_MARK = re.compile(r"<\|(start|message|end|call|return)\|>")
_RECIPIENT = re.compile(r"(?:^|\s|>)to=(?:functions\.)?([^\s<]+)")
_NO_TOOLS = {"user", "assistant", "all"}


def find_harmony(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
    """Yields the messages to tools. Other messages of the turn, such as thoughts, have no calls."""
    start, header = 0, 0
    place, is_header = 0, True
    while mark := _MARK.search(text, place):
        place = mark.end()
        if mark[1] == "start":
            start, header = mark.span()
            is_header = text.startswith("assistant", header)
        elif mark[1] == "message" and is_header:
            is_header = False
            recipient = _RECIPIENT.search(text, header, mark.start())
            if recipient and recipient[1] not in _NO_TOOLS:
                found = _read(text, start, mark.end(), recipient[1])
                yield found
                place = found.end
        else:
            is_header = False


def _read(text: str, start: int, body: int, name: str) -> Found:
    arguments: dict[str, Any] | None = {}
    problem, end = "", body
    try:
        first = _MARK.search(text, body)
        if text[body : first.start() if first else len(text)].strip():
            value, end = read_json_at(text, skip_space(text, body), start)
            arguments = arguments_of(value)
    except ValueError as error:
        arguments, problem = None, str(error)
    mark = _MARK.search(text, end)
    behind = text[end : mark.start() if mark else len(text)].strip()
    if behind and not problem:
        arguments, problem = None, f"behind the arguments stands {behind[:20]!r}"
    stop = len(text) if mark is None else mark.start() if mark[1] == "start" else mark.end()
    return Found(start, stop, name, arguments, problem)
