"""Environments of rows: the task of a row, and the environment that it is for."""

from collections.abc import Collection, Mapping
from typing import Any

from shoal.config.data import SourceConfig
from shoal.data.rows import Row
from shoal.errors import InvalidArgument
from shoal.parsing import parse_json
from shoal.rollout import EnvironmentTask


def environment_of(row: Row, source: SourceConfig, known_environments: Collection[str]) -> EnvironmentTask | None:
    """Reads the environment and the task of a row; None for a row without one.

    Raises `InvalidArgument`, which names the row, for an unknown environment, or a task that is not a table of JSON.
    """
    if not source.names_environments:
        return None
    name = source.environment
    if source.environment_column is not None:
        name = row.values.get(source.environment_column)
        if name is None or name == "":
            return None
        if not isinstance(name, str):
            raise InvalidArgument(
                f"{row.where}: {source.environment_column} must be the name of an environment (found: {name!r:.80})"
            )
    assert name is not None
    if name not in known_environments:
        known = f"known: {', '.join(sorted(known_environments))}" if known_environments else "the table is empty"
        raise InvalidArgument(
            f"{row.where}: no environment is called {name!r:.80}; declare it under [[environments]] ({known})"
        )
    return EnvironmentTask(name, _task(row, source.environment_task_column))


def _task(row: Row, column: str) -> dict[str, Any]:
    value = row.values.get(column)
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            raise InvalidArgument(f"{row.where}: {column} is not JSON: {error}") from None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{row.where}: {column} must be a table, or one as JSON text (found: {value!r:.80})")
    return {str(name): _json_value(row, item, column) for name, item in value.items()}


def _json_value(row: Row, value: Any, column: str) -> Any:
    """Returns a value as it travels in a `google.protobuf.Value`. Raises `InvalidArgument` for one that cannot."""
    if isinstance(value, Mapping):
        return {str(name): _json_value(row, item, column) for name, item in value.items()}
    if isinstance(value, list):
        return [_json_value(row, item, column) for item in value]
    is_exact = not isinstance(value, int) or abs(value) < 2**53
    is_finite = not isinstance(value, float) or abs(value) < float("inf")
    if value is None or (isinstance(value, str | bool | int | float) and is_exact and is_finite):
        return value
    raise InvalidArgument(
        f"{row.where}: {column} holds {value!r:.40}, which does not travel as JSON: use text, whole numbers below "
        "2^53 and finite numbers"
    )
