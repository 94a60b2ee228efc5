"""Environments of rows: a row's environment, its task, and the tools that it offers."""

import contextlib
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from shoal.config.tables.data import SourceConfig
from shoal.data.json_text import parse_json_text
from shoal.data.rows import Row, is_empty, unicode_of
from shoal.errors import InvalidArgument
from shoal.parsing import parse_json
from shoal.rollout import EnvironmentTask

_NOT_THE_TASKS = frozenset({"env_name", "is_text_env", "max_steps"})
"""Keys of open-instruct's `env_config` that no environment reads."""
_MAX_DEPTH = 24
"""The most levels of a task, including the task itself. Each level takes three levels of a message, and protobuf reads
at most a hundred."""
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,15}")


def environment_of(row: Row, source: SourceConfig, known_environments: Collection[str]) -> EnvironmentTask | None:
    """Reads a row's environment (in any case of letters), task and tools; returns None without an environment.

    Raises `InvalidArgument`, which names the row, for an unknown environment, a task that is not a JSON table, or tools
    that are not a list of names. Whether the environment has the tools is checked later, when its code is loaded.
    """
    found = _named(row, source) if source.names_environments else None
    if found is None:
        return None
    name = found.environment.lower()
    if name not in known_environments:
        known = f"known: {', '.join(sorted(known_environments))}" if known_environments else "the table is empty"
        raise InvalidArgument(
            f"{row.where}: no environment is called {found.environment!r:.80}; declare it under [[environments]] "
            f"({known})"
        )
    return replace(found, environment=name, tools=_tools(row, source.tools_column))


def refuse_tools(row: Row, column: str) -> None:
    """Raises `InvalidArgument` for a row that defines tools but has no environment: no prompt would show the tools."""
    value = row.values.get(column) if column else None
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError):
            value = parse_json(value)
    if isinstance(value, list) and any(isinstance(tool, Mapping) and not is_empty(tool) for tool in value):
        raise InvalidArgument(
            f"{row.where}: the column {column!r} defines tools, but a prompt without an environment does not show "
            "tools: give the source an environment that has the tools, or write the tools into the messages and unset "
            'the column (tools_column = "")'
        )


def _named(row: Row, source: SourceConfig) -> EnvironmentTask | None:
    name = source.environment
    if source.environment_column is not None:
        name = row.values.get(source.environment_column)
        if name is None or name == "":
            return None
        if isinstance(name, Mapping | list):
            return _configured(row, name, source.environment_column)
        if not isinstance(name, str):
            raise InvalidArgument(
                f"{row.where}: {source.environment_column} must be the name of an environment, or a table with its "
                f"env_name (found: {name!r:.80})"
            )
    assert name is not None
    return EnvironmentTask(name, _task(row, source.environment_task_column))


def _configured(row: Row, value: Mapping[str, Any] | list[Any], column: str) -> EnvironmentTask | None:
    """Reads open-instruct's `env_config`: a table with `env_name`, a list of such tables, or a table with such a list
    as `env_configs`. The rest of the table is the task. Returns None if the value names no environment."""
    entries = value if isinstance(value, list) else value.get("env_configs", [value])
    named = [entry for entry in entries or () if isinstance(entry, Mapping) and entry.get("env_name")]
    if len(named) > 1:
        names = ", ".join(str(entry["env_name"]) for entry in named)
        raise InvalidArgument(
            f"{row.where}: {column} names several environments ({names}), but each prompt has one environment; "
            'source = "toolbox" offers the tools of several environments'
        )
    if not named:
        return None
    # Columns of tables have a null for each key that only other rows have, and numbers as text.
    told = {key: item for key, item in named[0].items() if key not in _NOT_THE_TASKS and item is not None}
    task = _json_value(row, {key: _number(item) for key, item in told.items()}, column)
    return EnvironmentTask(str(named[0]["env_name"]), task)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value) else value


def _task(row: Row, column: str) -> dict[str, Any]:
    value = row.values.get(column) if column else None
    if isinstance(value, str):
        try:
            value = parse_json_text(value)
        except ValueError as error:
            raise InvalidArgument(f"{row.where}: {column} is not JSON: {error}") from None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{row.where}: {column} must be a table, or JSON text of a table (found: {value!r:.80})")
    task: dict[str, Any] = _json_value(row, value, column)
    return task


def _tools(row: Row, column: str) -> tuple[str, ...] | None:
    value = row.values.get(column) if column else None
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise InvalidArgument(
            f'{row.where}: {column} must be a list of names of tools, such as ["search"], or null for all tools of the '
            f"environment (found: {value!r:.80}); if the column has another purpose, set the source's tools_column to "
            'another column, or to "" for none'
        )
    return tuple(dict.fromkeys(unicode_of(row, name, column) for name in value))


def _json_value(row: Row, value: Any, column: str, depth: int = 1) -> Any:
    """Returns a value in the form of a `google.protobuf.Value`. Raises `InvalidArgument` without such a form."""
    if isinstance(value, Mapping | list) and depth > _MAX_DEPTH:
        raise InvalidArgument(f"{row.where}: {column} is nested deeper than {_MAX_DEPTH} levels; make the task flatter")
    if isinstance(value, Mapping):
        return {
            unicode_of(row, str(name), column): _json_value(row, item, column, depth + 1)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_json_value(row, item, column, depth + 1) for item in value]
    if isinstance(value, str):
        return unicode_of(row, value, column)
    is_exact = isinstance(value, int) and abs(value) < 2**53
    if value is None or is_exact or (isinstance(value, float) and abs(value) < float("inf")):
        return value
    raise InvalidArgument(
        f"{row.where}: {column} holds {value!r:.40}, which JSON cannot represent: use text, whole numbers below 2^53 "
        "and finite numbers"
    )
