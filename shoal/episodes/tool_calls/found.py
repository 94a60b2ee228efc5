"""Tool calls as a parser finds them in a text, before anybody checks that the tool exists and takes the arguments."""

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
"""Most calls of one turn. It also bounds the time that a parser spends on texts that begin calls and never end them."""
_DECODER = json.JSONDecoder(parse_constant=lambda constant: _refuse_constant(constant))


@dataclass(frozen=True)
class Found:
    """A place in a text that is a call, or looks like one."""

    start: int
    end: int
    """One past its last character."""
    name: str = ""
    """The tool; empty if it could not be read."""
    arguments: dict[str, Any] | None = None
    """None if they could not be read, or where only the tool could tell what they are called."""
    problem: str = ""
    """What is wrong with it, for the policy; empty if nothing is."""


Finder = Callable[[str, Sequence[ToolDefinition]], Iterable[Found]]
"""Yields the calls in a text, in order; what the tools are matters only to formats without types."""


def read_json_at(text: str, start: int) -> tuple[Any, int]:
    """Returns the JSON value that begins at a place, and where it ends. Raises `ValueError`, which says why not."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos - start + 1} of the call") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_json(value)
    return value, end


def check_json(value: Any) -> None:
    """Raises `ValueError` for a value that cannot travel as JSON: nested too deeply, or with halves of characters."""
    try:
        check_depth(value)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it is not valid Unicode") from None


def arguments_of(value: Any) -> dict[str, Any]:
    """Returns arguments that are an object, or the text of one. Raises `ValueError`."""
    if isinstance(value, str):
        try:
            value, _ = read_json_at(value.strip(), 0)
        except ValueError as error:
            raise ValueError(f"the arguments are a text that is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("the arguments must be a JSON object")
    return value


def call_in_json(value: Any, argument_keys: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Returns name and arguments of a call that is a JSON object; the first of the keys that it has names the
    arguments. Raises `ValueError`.
    """
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
    """Returns the first match that begins outside of thoughts, from a place that is outside of them; None without one.

    What a thought says about calls is none. A mark of thoughts inside a call is part of the call.
    """
    while begun := pattern.search(text, start):
        thought = next_thought(text, start, begun.start())
        if thought is None:
            return begun
        start = thought[1]
    return None


def end_unread(text: str, start: int, closing: str, opening: re.Pattern[str]) -> int:
    """Returns where a call that cannot be read ends, given a place inside it: behind its closing tag, before the next
    call, or before a thought, whichever comes first."""
    thought = next_thought(text, start, len(text))
    end = len(text) if thought is None else thought[0]
    close, following = text.find(closing, start, end), opening.search(text, start, end)
    if close >= 0 and (following is None or close < following.start()):
        return close + len(closing)
    return end if following is None else following.start()


def only_argument(text: str, tool: ToolDefinition) -> dict[str, Any]:
    """Returns the arguments of a call that gives one value as text: that of the first required parameter, else of the
    first one. Raises `ValueError` for a tool without parameters that is given a value.
    """
    properties = tool.parameters.get("properties") or {}
    name = next(iter([*(tool.parameters.get("required") or ()), *properties]), None)
    if name is None:
        if text.strip():
            raise ValueError(f"{tool.name} takes no argument")
        return {}
    return {name: typed(text, name, tool)}


def typed(text: str, parameter: str, tool: ToolDefinition) -> Any:
    """Returns the value of a parameter that was written as text: the text itself where the tool's schema takes it, else
    the JSON or the literal of Python that it is. A value that the schema takes in no form is left for it to refuse.
    """
    properties = tool.parameters.get("properties") or {}
    # With all properties, since a reference may lead to another parameter, but without what they must be together.
    kept = {key: value for key, value in tool.parameters.items() if key in ("$schema", "$id", "$defs", "definitions")}
    alone = replace(tool, parameters={**kept, "properties": properties})
    values = [text, *_values_in(text.strip())]
    fitting = [value for value in values if not problem_of({parameter: value}, alone)]
    schema = properties.get(parameter)
    takes_text = not isinstance(schema, dict) or schema.get("type") == "string"
    return (fitting or (values if takes_text else values[-1:]))[0]


def _values_in(text: str) -> Iterator[Any]:
    """Yields what a text is as JSON, and as a literal of Python."""
    with suppress(ValueError):
        value, end = read_json_at(text, 0)
        if end == len(text):
            yield value
    with suppress(ValueError):
        value = literal(text)
        check_json(value)
        yield value


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
