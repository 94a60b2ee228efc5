"""Reading, checking and writing of a RunConfig."""

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from shoal.chat_templates import FIELD, is_file_name, template_text
from shoal.config.fields import all_fields, annotation_at, field_names, listed, may_hold_key, takes_as_text
from shoal.config.run import RunConfig
from shoal.config.tables.custom_verifiers import find_files
from shoal.config.tables.environments import find_environment_files
from shoal.errors import FieldViolation, InvalidArgument
from shoal.parsing import MAX_DEPTH, check_depth
from shoal.paths import why_unread
from shoal.similar_names import similar_names

UNKNOWN_KEY = "unknown key"
"""The first words of the description of a violation if no field has the given name."""
_NEAR, _NEAR_TABLE = 0.6, 0.7
"""The least similarity of a suggested name of a field, and of a table. Few names of unknown tables are misspelled."""
_MAX_ELSEWHERE = 3
_MAX_NUMBER = 2**53
"""The largest whole number: numbers travel as doubles, which represent no larger whole number exactly."""
_SHAPES = {"model_type": "a table", "dict_type": "a table", "list_type": "a list"}
"""The TOML words for the shapes of values, by the types of pydantic's errors."""
_PYTHON = {"True": True, "False": False}
_NAMED = re.compile(r"([a-z_]+(?:\.[a-z_]+)+): (.*)", re.DOTALL)


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads a TOML file and applies overrides of the form "a.b=value".

    Raises `InvalidArgument`, which names each wrong field, its value and the values that are allowed.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidArgument(f"there is no configuration file {path}: give the path of a TOML file") from None
    except (ValueError, OSError, RecursionError) as error:
        raise InvalidArgument(f"{path} cannot be read as TOML: {why_unread(error)}") from None
    find_files(values, path.parent)
    find_environment_files(values, path.parent)
    _override(values, overrides)
    return parse_config(values)


def load_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Reads only overrides of the form "a.b=value", as nested values that JSON can represent.

    Raises `InvalidArgument` for an override of another form.
    """
    values: dict[str, Any] = {}
    _override(values, overrides)
    _check_travels(values)
    plain = json.loads(json.dumps(values, default=str))
    assert isinstance(plain, dict)
    return plain


def _override(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Applies overrides in place. Replaces names of files by values for other machines and a resumed run."""
    for override in overrides:
        apply_override(values, override)
    _check_depth(values)
    find_files(values, Path.cwd())
    find_environment_files(values, Path.cwd())
    _inline_chat_template(values.get("model"), FIELD)
    reward = values.get("reward")
    if isinstance(reward, dict):
        _inline_chat_template(reward.get("model"), f"reward.{FIELD}")


def _inline_chat_template(model: Any, field: str) -> None:
    """Replaces the path of a template by its text: other machines and a resumed run may not have the file."""
    template = model.get("chat_template") if isinstance(model, dict) else None
    if isinstance(template, str) and is_file_name(template):
        model["chat_template"] = template_text(template, field)


def apply_override(values: dict[str, Any], override: str) -> None:
    """Sets one dotted key of a nested mapping, in place.

    The value is read as TOML, or as a string if the value is no TOML, so that paths need no quotes. For a field that
    takes only text the value stays text: a revision may look like a number, and a name may look like a date. True and
    False, as Python writes them, are booleans: in a free table the text "False" would count as true.
    """
    key, equals, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts) or len(parts) > MAX_DEPTH:
        raise InvalidArgument(f"--set {override!r:.200} is not of the form section.field=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = _PYTHON.get(text.strip(), text)
    if takes_as_text(parts, value):
        value = text
    table: Any = values
    for depth, part in enumerate(parts[:-1]):
        table = _item(table, part, ".".join(parts[: depth + 1]))
    if isinstance(table, list):
        table[list_index(table, parts[-1], key)] = value
    else:
        table[parts[-1]] = value


def _item(table: Any, part: str, name: str) -> Any:
    found = table[list_index(table, part, name)] if isinstance(table, list) else table.setdefault(part, {})
    if not isinstance(found, dict | list):
        raise InvalidArgument(f"--set cannot set a field below {name}, which is a value and not a table")
    return found


def list_index(table: list[Any], part: str, name: str) -> int:
    """Reads an index into a list. Raises `InvalidArgument`, with the list's name, for any other text."""
    if not part.isdecimal() or int(part) >= len(table):
        raise InvalidArgument(f"--set {name}: {part!r} must be an index (from 0) into a list of {len(table)} items")
    return int(part)


def parse_config(values: Mapping[str, Any] | Struct) -> RunConfig:
    """Validates plain values, or the Struct in which a configuration travels.

    Raises `InvalidArgument`, which names each wrong field, its value and the values that are allowed.
    """
    plain = plain_values(values)
    _check_depth(plain)
    _check_travels(plain)
    try:
        return RunConfig.model_validate(listed(without_nulls(plain)))
    except ValidationError as error:
        violations = [_violation(details) for details in error.errors()]
        lines = "".join(f"\n  {violation.field}: {violation.description}" for violation in violations)
        raise InvalidArgument(f"the configuration is not valid:{lines}", violations=violations) from None


def plain_values(values: Mapping[str, Any] | Struct) -> Mapping[str, Any]:
    """Returns a configuration, or a part of one, as plain values. Raises `InvalidArgument` for infinite numbers."""
    if not isinstance(values, Struct):
        return values
    try:
        plain = json_format.MessageToDict(values)
    except ValueError as error:  # A number that JSON does not have.
        raise InvalidArgument(f"the configuration is not valid: {error}; give finite numbers") from None
    assert isinstance(plain, dict)
    return {name: whole_numbers(value) for name, value in plain.items()}


def whole_numbers(value: Any, *, below: float = 2**53) -> Any:
    """Converts numbers without a fraction to whole numbers, if they are below a bound.

    A Struct has no integers. Without this conversion a setting of somebody's class would be 5.0 where the file has 5.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < below:
        return int(value)
    if isinstance(value, dict):
        return {name: whole_numbers(item, below=below) for name, item in value.items()}
    return [whole_numbers(item, below=below) for item in value] if isinstance(value, list) else value


def _check_depth(values: Mapping[str, Any]) -> None:
    try:
        check_depth(values)
    except ValueError as error:
        raise InvalidArgument(f"the configuration is not valid: {error}") from None


def _check_travels(value: Any, name: str = "") -> None:
    """Refuses numbers and texts that a Struct cannot represent, also in free tables such as `task_options`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_travels(str(key), name)
            _check_travels(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_travels(item, f"{name}.{number}")
    elif isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise _not_valid(name, "is not valid Unicode, because the text has a lone surrogate")
    elif isinstance(value, int) and abs(value) > _MAX_NUMBER:
        raise _not_valid(name, f"must be from -{_MAX_NUMBER} to {_MAX_NUMBER} if the value is a whole number")
    elif isinstance(value, float) and not math.isfinite(value):
        raise _not_valid(name, f"must be a finite number (given: {value})")


def _not_valid(name: str, description: str) -> InvalidArgument:
    violation = FieldViolation(field=name or "config", description=description)
    return InvalidArgument(f"the configuration is not valid:\n  {name}: {description}", violations=[violation])


def without_nulls(value: Any) -> Any:
    """Drops nulls, since a null means the same as an absent field."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _violation(details: ErrorDetails) -> FieldViolation:
    location, given = [str(part) for part in details["loc"]], details["input"]
    message = details["msg"].removeprefix("Value error, ")
    if details["type"] == "extra_forbidden":
        description = f"{UNKNOWN_KEY}; {_hint(location)}"
    elif details["type"] == "missing":
        description = "is required"
    elif details["type"] in _SHAPES:
        example = f", such as {_list_of(given)}" if annotation_at([*location, "0"]) is str else ""
        description = f"must be {_SHAPES[details['type']]}{example} (given: {_shown(given)})"
    elif details["type"] == "string_type" and not isinstance(given, list | Mapping):
        description = f"must be a text, in quotation marks: {_quoted(given)} (given: {_shown(given)})"
    elif isinstance(given, Mapping) or may_hold_key(location):
        description = message
    else:
        description = f"{message[:1].lower()}{message[1:]} (given: {_shown(given)})"
    field = ".".join(location)
    if not field and (named := _NAMED.fullmatch(description)):
        # Checks across sections run at the root; their messages begin with the field to change.
        field, description = named.groups()
    return FieldViolation(field=field or "config", description=description)


def _shown(value: Any) -> str:
    """Returns a value for a message: dates and times are written as in TOML."""
    return str(value) if isinstance(value, date | time) else repr(value)


def _list_of(value: Any) -> str:
    """Returns the list of texts that a value may mean, which may be [a, b] without the quotes that a shell removed."""
    is_bare = isinstance(value, str) and value.startswith("[") and value.endswith("]")
    return (
        f"[{', '.join(_quoted(item.strip()) for item in value[1:-1].split(','))}]" if is_bare else f"[{_quoted(value)}]"
    )


def _quoted(value: Any) -> str:
    return json.dumps(value if isinstance(value, str) else str(value), ensure_ascii=False)


def _hint(location: Sequence[str]) -> str:
    """Returns the fields that an unknown field may mean: fields with this name in other sections, unless fields of its
    section begin with the name; otherwise similar fields of its section, or else all."""
    name, known = location[-1], field_names(location[:-1])
    elsewhere = [field for field in all_fields(RunConfig) if field.rpartition(".")[2] == name]
    longer = [field for field in known if field.startswith(f"{name}_")]
    if 0 < len(elsewhere) <= _MAX_ELSEWHERE and not longer:
        return f"did you mean {' or '.join(elsewhere)}?"
    if meant := similar_names(name, known, most=1, likeness=_NEAR if location[:-1] else _NEAR_TABLE):
        return f"did you mean {' or '.join(map(repr, meant))}?"
    return f"known: {', '.join(known)}"


def dump_config(config: RunConfig) -> dict[str, Any]:
    """Returns the resolved configuration as plain JSON values, without nulls."""
    dumped = config.model_dump(mode="json", exclude_none=True)
    assert isinstance(dumped, dict)
    return dumped


def config_struct(config: RunConfig) -> Struct:
    """Returns the resolved configuration as the Struct in which the configuration travels."""
    return json_format.ParseDict(dump_config(config), Struct())


def config_digest(config: RunConfig) -> str:
    """Returns the SHA-256, in hex, of the resolved configuration in the form in which it travels.

    In this form a whole number in a free table becomes a double, so 3 and 3.0 have equal digests.
    """
    traveled = json_format.MessageToDict(config_struct(config))
    canonical = json.dumps(traveled, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
