"""Reads calls as Llama 3 writes them: {"name": ..., "parameters": {...}}, alone or after <|python_tag|>, with a ";"
between several calls."""

import re
from collections.abc import Iterator, Sequence

from shoal.chat_templates.thoughts import answer_start
from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls.found import Found, call_in_json, read_json_at, search_outside

_BEGINNING = re.compile(r'(<\|python_tag\|>\s*+)?\{\s*+"(?:name|type|parameters|arguments)"\s*+:|<\|python_tag\|>')
_SEPARATOR = re.compile(r"\s*+;")
_KEYS = ("parameters", "arguments")


def find_llama3_json(text: str, tools: Sequence[ToolDefinition]) -> Iterator[Found]:
    """Yields the calls after the policy's thoughts. JSON without a name or without parameters is content, since an
    answer may be JSON, but JSON after <|python_tag|> must be a call."""
    begun = search_outside(_BEGINNING, text, answer_start(text))
    while begun:
        found = _read(text, begun)
        if found is None:
            end = read_json_at(text, text.index("{", begun.start()), begun.start())[1]
        else:
            yield found
            end = found.end
        begun = search_outside(_BEGINNING, text, end)


def _read(text: str, begun: re.Match[str]) -> Found | None:
    """Returns the call that begins at a place; None for JSON that is not a call."""
    is_tagged = begun[0].startswith("<")
    if not begun[0].endswith(":"):
        return Found(begun.start(), begun.end(), problem="behind <|python_tag|> must come the JSON of a call")
    try:
        value, end = read_json_at(text, text.index("{", begun.start()), begun.start())
    except ValueError as error:
        following = search_outside(_BEGINNING, text, begun.end())
        return Found(begun.start(), following.start() if following else len(text), problem=str(error))
    if separator := _SEPARATOR.match(text, end):
        end = separator.end()
    try:
        name, arguments = call_in_json(value, _KEYS)
        return Found(begun.start(), end, name, arguments)
    except ValueError as error:
        is_call = is_tagged or ("name" in value and any(key in value for key in _KEYS))
        return Found(begun.start(), end, problem=str(error)) if is_call else None
