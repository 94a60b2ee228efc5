"""The calls that parsers find, before any check of the tool, and the reading of JSON and texts."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from shoal.chat_templates.thoughts import next_thought
from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls.literals import literal
from shoal.episodes.tool_calls.schemas import problem_of
from shoal.parsing import check_depth

MAX_CALLS = 64
"""The most calls in one turn, which also bounds the time for a text with many beginnings of calls that never end."""
_SPACE = re.compile(r"\s*+")
_DECODER = json.JSONDecoder(parse_constant=lambda constant: _refuse_constant(constant))


@dataclass(frozen=True)
class Found:
    """A part of a text that is a call, or looks like a call."""

    start: int
    end: int
    """The index after the last character of the call."""
    name: str = ""
    """The tool's name; empty if the name could not be read."""
    arguments: dict[str, Any] | None = None
    """The arguments; None if they could not be read, or if only an unknown tool's schema would name them."""
    problem: str = ""
    """A text that tells the policy what is wrong with the call; empty if nothing is wrong."""


Finder = Callable[[str, Sequence[ToolDefinition]], Iterable[Found]]
"""Yields the calls in a text, in order. Only forms without types read the schemas of the tools."""


def read_json_at(text: str, place: int, start: int) -> tuple[Any, int]:
    """Returns the JSON value that begins at `place`, and its end. Raises `ValueError` if no JSON can be read there; the
    error counts characters from `start`, the beginning of the call."""
    try:
        value, end = _DECODER.raw_decode(text, place)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg.removesuffix(' at')} at character {error.pos - start + 1}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_json(value)
    return value, end


def check_json(value: Any) -> None:
    """Raises `ValueError` for a value that is nested too deeply, or that contains lone surrogates."""
    try:
        check_depth(value)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it is not valid Unicode") from None


def arguments_of(value: Any) -> dict[str, Any]:
    """Returns the arguments, given as a JSON object or as its text. Raises `ValueError` for other values."""
    if isinstance(value, str):
        try:
            value, _ = read_json_at(value.strip(), 0, 0)
        except ValueError as error:
            raise ValueError(f"the arguments are a text that is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("the arguments must be a JSON object")
    return value


def call_in_json(value: Any, argument_keys: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Returns the name and the arguments of a call that is a JSON object, with the arguments under the first of
    `argument_keys` that it has. Raises `ValueError` for other values."""
    if not isinstance(value, dict):
        raise ValueError("a call must be a JSON object")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError('a call needs a "name"')
    key = next((key for key in argument_keys if key in value), None)
    if key is None:
        raise ValueError(f'a call needs "{argument_keys[0]}"')
    return name, arguments_of(value[key])


def search_outside(pattern: re.Pattern[str], text: str, start: int) -> re.Match[str] | None:
    """Returns the first match from `start` on that begins outside of thoughts; None if there is no such match.

    `start` is outside of thoughts. A mark of thoughts inside a call is part of the call.
    """
    begun = pattern.search(text, start)
    while begun and (thought := next_thought(text, start, begun.start())):
        start = thought[1]
        if begun.start() < start:
            begun = pattern.search(text, start)
    return begun


def skip_space(text: str, place: int) -> int:
    """Returns the first index from `place` on that has no white space."""
    found = _SPACE.match(text, place)
    return found.end() if found else place


def end_unread(text: str, start: int, closing: str, opening: re.Pattern[str]) -> int:
    """Returns the end of a call that cannot be read, given a place inside the call: behind its closing tag, before the
    next call, or before a thought, whichever comes first."""
    close = text.find(closing, start)
    following = opening.search(text, start, close if close >= 0 else len(text))
    end = following.start() if following else close if close >= 0 else len(text)
    if thought := next_thought(text, start, end):
        return thought[0]
    return end + len(closing) if end == close else end


def only_argument(text: str, tool: ToolDefinition) -> dict[str, Any]:
    """Returns the arguments of a call that gives one value as text, for the tool's first required parameter, or for its
    first parameter if none is required. Raises `ValueError` for a value if the tool has no parameters."""
    names = [*(tool.parameters.get("required") or ()), *(tool.parameters.get("properties") or ())]
    if names:
        return {names[0]: typed(text, names[0], tool)}
    if text.strip():
        raise ValueError(f"{tool.name} takes no argument")
    return {}


def typed(text: str, parameter: str, tool: ToolDefinition) -> Any:
    """Returns the value of a parameter that was written as text: the text itself if the tool's schema accepts a text,
    otherwise its value as JSON or as a literal of Python. The check of the arguments refuses a value that the schema
    accepts in no form."""
    properties = tool.parameters.get("properties") or {}
    # Keeps all properties, since a reference may lead to another parameter, and drops rules about several parameters.
    kept = {key: value for key, value in tool.parameters.items() if key in ("$schema", "$id", "$defs", "definitions")}
    alone = replace(tool, parameters={**kept, "properties": properties})
    if not problem_of({parameter: text}, alone):
        return text
    values = [*_values_in(text.strip())]
    fitting = [value for value in values if not problem_of({parameter: value}, alone)]
    schema = properties.get(parameter)
    takes_text = not isinstance(schema, dict) or schema.get("type") == "string"
    return fitting[0] if fitting else text if takes_text or not values else values[-1]


def _values_in(text: str) -> Iterator[Any]:
    """Yields the value of a text as JSON, and its value as a literal of Python."""
    with suppress(ValueError):
        value, end = read_json_at(text, 0, 0)
        if end == len(text):
            yield value
    with suppress(ValueError):
        value = literal(text)
        check_json(value)
        yield value


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
