"""Tools from Python functions: the signature and the docstring become the definition that the policy reads."""

import enum
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin

from shoal.conversation import ToolDefinition

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MARK = "_shoal_tool"

_TYPES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_ARGUMENTS = re.compile(r"^(Args|Arguments|Parameters):\s*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_SECTION = re.compile(r"^(Returns?|Raises|Yields?|Examples?|Notes?):\s*$")


def tool(method: _Function) -> _Function:
    """Marks a method of an environment as a tool that the policy may call."""
    setattr(method, _MARK, True)
    return method


def marked_tools(environment: object) -> Iterator[Callable[..., Any]]:
    """Yields the methods that are marked with `tool`, in the order of their definitions, base classes first."""
    names = [name for cls in reversed(type(environment).__mro__) for name in vars(cls)]
    for name in dict.fromkeys(names):
        if getattr(getattr(type(environment), name, None), _MARK, False):
            yield getattr(environment, name)


def definition(function: Callable[..., Any]) -> ToolDefinition:
    """Describes a function: its name, its docstring up to "Args:", and a JSON schema of its parameters. Raises
    `ValueError` for parameters that cannot be given by name, and for types without a schema."""
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise ValueError(f"a tool must be a function with a name (found: {function!r})")
    description, about = _docstring(inspect.getdoc(function) or "")
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:  # An annotation may be any expression.
        raise ValueError(f"the annotations of the tool {name} cannot be read: {error}") from None
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(
                f"the tool {name} takes {parameter.name!r} by position, but the arguments of tools are given by name"
            )
        schema = _schema(hints.get(parameter.name, Any), f"{name}: {parameter.name}")
        if parameter.name in about:
            schema = schema | {"description": about[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        properties[parameter.name] = schema
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return ToolDefinition(name, description, parameters | ({"required": required} if required else {}))


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Returns the text before "Args:", and the description of each parameter after it."""
    head, *rest = _ARGUMENTS.split(text, maxsplit=1)
    about: dict[str, str] = {}
    current = ""
    for line in (rest[-1] if rest else "").splitlines():
        stripped = line.strip()
        if _SECTION.match(line):
            break
        if match := _ARGUMENT.match(stripped):
            current = match[1]
            about[current] = match[2]
        elif stripped and current:
            about[current] += f" {stripped}"
    lines = head.strip().splitlines()
    end = next((number for number, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    return "\n".join(lines[:end]).strip(), about


def _schema(annotation: Any, where: str) -> dict[str, Any]:
    """Returns the JSON schema of a type. Raises `ValueError`, whose message begins with `where`, if it has none."""
    if annotation in (Any, inspect.Parameter.empty):
        return {}
    if annotation in _TYPES:
        return {"type": _TYPES[annotation]}
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return _schema(arguments[0], where)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if isinstance(annotation, type) and issubclass(annotation, enum.StrEnum):
        return {"enum": [member.value for member in annotation]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(argument, where) for argument in arguments]}
    container = origin or annotation
    if container in (list, tuple, set, Sequence):
        items = _schema(arguments[0], where) if arguments else {}
        return {"type": "array"} | ({"items": items} if items else {})
    if container in (dict, Mapping):
        return {"type": "object"}
    raise ValueError(
        f"{where} has the type {annotation}, which JSON does not have: use str, int, float, bool, list, dict, Literal, "
        "a StrEnum, or a union of them"
    )
