"""Tool calls as a parser finds them in a text, before anybody checks that the tool exists and takes the arguments."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.conversation import ToolDefinition
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


def behind_thoughts(text: str) -> int:
    """Returns where the answer begins: behind the first </think>, and nowhere in a text that is a thought alone.

    What a thought says about calls is none. The prompt may have begun the thought, so its beginning is not looked for.
    """
    end = text.find("</think>")
    if end >= 0:
        return end + len("</think>")
    return len(text) if text.lstrip().startswith("<think>") else 0


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
    return {name: typed(text, properties.get(name))}


def typed(text: str, schema: Any) -> Any:
    """Returns a value that was written as text: the text itself for a parameter that may be a string, else the JSON
    that it is. Text that is no JSON stays text, for the schema to refuse.
    """
    alternatives = schema.get("anyOf") if isinstance(schema, dict) else None
    if any(map(_takes_text, alternatives if isinstance(alternatives, list) else [schema])):
        return text
    try:
        value, end = read_json_at(text.strip(), 0)
    except ValueError:
        return text
    return value if end == len(text.strip()) else text


def _takes_text(schema: Any) -> bool:
    """Returns whether a value may be a string; an optional number has alternatives, none of which is one."""
    if not isinstance(schema, dict):
        return True
    kinds = schema.get("type")
    return kinds is None or kinds == "string" or (isinstance(kinds, list) and "string" in kinds)


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
