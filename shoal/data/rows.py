"""Rows: the records of a source, before they become prompts."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.config.data import SourceConfig
from shoal.errors import InvalidArgument


@dataclass(frozen=True)
class Row:
    """One record of a source."""

    number: int
    """Index in the source, from 0; part of the prompt id."""
    where: str
    """Location for messages, counted from 1: "questions.jsonl:7", "questions.parquet row 7"."""
    values: Mapping[str, Any]


@dataclass(frozen=True)
class RowSource:
    """A source with its rows, in their original order."""

    name: str
    """Name that is the same on every machine and in every run; the first half of a prompt id."""
    rows: list[Row]


def row_name(prompt_id: str) -> str:
    """Returns where a prompt comes from, for messages: "questions.jsonl:6" gives "questions.jsonl row 7".

    The index in an id counts from 0; rows count from 1, without blank lines.
    """
    source, _, index = prompt_id.rpartition(":")
    return f"{source} row {int(index) + 1}" if source and index.isdecimal() else prompt_id


def wanted_columns(source: SourceConfig) -> list[str]:
    """Returns the columns that prompts are made from."""
    if source.names_environments:  # The reward may be the environment's alone.
        return [source.messages_column, *([source.environment_column] if source.environment_column else [])]
    # Columns that make up a label may be absent.
    labels = [] if source.label_columns else [source.ground_truth_column]
    return [source.messages_column, *labels, *([] if source.verifier is not None else [source.verifier_column])]


def check_columns(source: SourceConfig, rows: RowSource) -> None:
    """Raises `InvalidArgument` for a column of the source's that no row has, where a row need not have it."""
    for field in ("environment_column", "environment_task_column", "tools_column"):
        column = getattr(source, field)
        if (
            column
            and column != SourceConfig.model_fields[field].default
            and not any(column in row.values for row in rows.rows)
        ):
            present = sorted({name for row in rows.rows[:100] for name in row.values})
            raise InvalidArgument(
                f"data source {rows.name}: no row has the column {column!r}, which {field} names; columns: "
                f"{', '.join(present)}"
            )


def optional_columns(source: SourceConfig) -> list[str]:
    """Returns the columns that prompts are made from where they are there."""
    labels = list(source.label_columns.values())
    if not source.names_environments:
        return labels
    told = filter(None, (source.environment_task_column, source.tools_column))
    return [*told, source.ground_truth_column, source.verifier_column, *labels]


def present_columns(source: SourceConfig, present: Collection[str], where: str) -> list[str]:
    """Returns the columns to read of those in a file or data set. Raises `InvalidArgument` for one that is missing."""

    def holder(column: str) -> str:
        # A dot selects a key in a column of tables, unless a column has the whole name.
        return column if column in present else column.partition(".")[0]

    wanted = wanted_columns(source)
    if missing := [column for column in wanted if holder(column) not in present]:
        raise InvalidArgument(f"{where}: there is no column {missing[0]!r}; it has: {', '.join(present)}")
    columns = [holder(column) for column in (*wanted, *optional_columns(source))]
    return [column for column in dict.fromkeys(columns) if column in present]


def unicode_of(row: Row, text: str, column: str) -> str:
    """Returns a text of a row. Raises `InvalidArgument` for one with half of a character: no message carries it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{row.where}: {column} is not valid Unicode: a lone surrogate at character {error.start}"
        ) from None
    return text
