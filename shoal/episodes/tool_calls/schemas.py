"""Checks the arguments of a call against the JSON schema of its tool (json-schema.org)."""

import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from shoal.conversation import ToolDefinition
from shoal.errors import InvalidArgument
from shoal.parsing import compile_schema

_UNBOUNDED = ("pattern", "patternProperties", "uniqueItems", "unevaluatedItems", "unevaluatedProperties")
"""Keywords that are not checked here, because a policy can write arguments for which the check takes hours."""
_MAX_COMPARED = 16
"""The most faults that are compared in order to report the most helpful fault."""


def check_tools(tools: Sequence[ToolDefinition]) -> None:
    """Raises `InvalidArgument` for a tool without a name, with another tool's name, or without a usable JSON schema."""
    names = [tool.name for tool in tools]
    for tool in tools:
        if not tool.name:
            raise InvalidArgument("a tool has no name")
        if names.count(tool.name) > 1:
            raise InvalidArgument(f"{names.count(tool.name)} tools are called {tool.name!r}: rename all but one")
        try:
            problem_of({}, tool)
        except ValueError as error:
            raise InvalidArgument(f"tool {tool.name!r}: its parameters are not a usable JSON schema: {error}") from None


def problem_of(arguments: dict[str, Any], tool: ToolDefinition) -> str:
    """Returns what is wrong with the arguments of a call; an empty text if nothing is wrong. Raises `ValueError` for a
    schema that is not valid, or that refers to another document."""
    from jsonschema.exceptions import best_match

    validator = _validator(json.dumps(tool.parameters, sort_keys=True))
    try:
        error = best_match(itertools.islice(validator.iter_errors(arguments), _MAX_COMPARED))
    except (RecursionError, OverflowError):
        return "they are nested too deeply, or have a number that is too large"
    return "" if error is None else f"{error.json_path}: {error.message}"


@functools.lru_cache(maxsize=1024)
def _validator(schema_json: str) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    schema = json.loads(schema_json)
    kind = validator_for(schema, default=Draft202012Validator)
    keywords = dict.fromkeys(_UNBOUNDED, _accept)
    keywords["additionalProperties"] = _additional_properties(kind.VALIDATORS["additionalProperties"])
    return compile_schema(schema, keywords)


def _accept(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Exception]:
    return iter(())


def _additional_properties(check: Any) -> Any:
    """Returns the check for unknown names of arguments, which a schema with patterns of names always passes."""

    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Exception]:
        return iter(()) if "patternProperties" in schema else check(validator, value, instance, schema)

    return checked
