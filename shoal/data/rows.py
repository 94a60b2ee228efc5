"""Rows: the records of a source, before they become prompts."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.config.tables.data import SourceConfig
from shoal.errors import InvalidArgument

_MEDIA_COLUMN = re.compile(
    r"(image|img|picture|photo|audio|video)s?(_?(url|path|file|bytes|base64|data)s?)?|pixel_values|multi_?modal_data",
    re.IGNORECASE,
)
"""Names by which data have media in addition to text: `images`, `image_url`, `video_path`."""
_MEDIA = re.compile(r"image|audio|video", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """One record of a source."""

    number: int
    """Index of the row in the source, from 0. The index is part of the prompt id."""
    where: str
    """Location for error messages, counted from 1: "questions.jsonl:7", "questions.parquet row 7"."""
    values: Mapping[str, Any]
    is_of_table: bool = False
    """Whether the row comes from columns. Such a row has a null for each name that only other rows have."""


@dataclass(frozen=True)
class RowSource:
    """A source with its rows, in their original order."""

    name: str
    """The source's name, the same on every machine and in every run. The name is the first half of a prompt id."""
    rows: list[Row]
    digests: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each file from which the rows were read, by its name. If there is no file, SHA-256 of the rows."""


def digest_of_rows(rows: Iterable[Row]) -> str:
    """Returns the SHA-256 of the values of rows that do not come from a local file."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row.values, sort_keys=True, default=repr).encode("ascii") + b"\n")
    return digest.hexdigest()


def row_name(prompt_id: str) -> str:
    """Returns the location of a prompt's row, for messages: "questions.jsonl:6" gives "questions.jsonl row 7". Rows
    count without blank lines."""
    source, _, index = prompt_id.rpartition(":")
    return f"{source} row {int(index) + 1}" if source and index.isdecimal() else prompt_id


def column_of(row: Row, name: str) -> Any:
    """Returns the value in a column of a row; a dot in the name selects a key in a column of tables.

    Raises `InvalidArgument` if the row has no such column."""
    if name not in row.values and "." in name:
        outer, _, inner = name.partition(".")
        value = row.values.get(outer)
        for part in inner.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    if name not in row.values:
        raise InvalidArgument(f"{row.where}: there is no column {name!r}; the row has: {', '.join(row.values)}")
    return row.values[name]


def wanted_columns(source: SourceConfig) -> list[str]:
    """Returns the columns from which prompts are made."""
    if source.names_environments:  # The whole reward may come from the environment.
        return [source.messages_column, *([source.environment_column] if source.environment_column else [])]
    # Columns that together make a label may be absent.
    labels = [] if source.label_columns else [source.ground_truth_column]
    return [source.messages_column, *labels, *([] if source.verifier is not None else [source.verifier_column])]


def check_columns(source: SourceConfig, rows: RowSource) -> None:
    """Raises `InvalidArgument` for an optional column of the source that no row has."""
    for setting in ("environment_column", "environment_task_column", "tools_column"):
        column = getattr(source, setting)
        is_default = column == SourceConfig.model_fields[setting].default
        if column and not is_default and not any(column in row.values for row in rows.rows):
            present = sorted({name for row in rows.rows[:100] for name in row.values})
            raise InvalidArgument(
                f"data source {rows.name}: no row has the column {column!r}, which {setting} names; columns: "
                f"{', '.join(present)}"
            )


def optional_columns(source: SourceConfig) -> list[str]:
    """Returns the columns that prompts use if they exist."""
    labels = list(source.label_columns.values())
    if not source.names_environments:  # The tools are read in order to refuse them: no prompt would show them.
        return [*filter(None, [source.tools_column]), *labels]
    told = filter(None, (source.environment_task_column, source.tools_column))
    return [*told, source.ground_truth_column, source.verifier_column, *labels]


def present_columns(source: SourceConfig, present: Collection[str], where: str) -> list[str]:
    """Returns the columns to read from a file or data set. Raises `InvalidArgument` for a missing column."""

    def holder(column: str) -> str:
        # A dot selects a key in a column of tables, unless the whole name is a column.
        return column if column in present else column.partition(".")[0]

    wanted = wanted_columns(source)
    if missing := [column for column in wanted if holder(column) not in present]:
        raise InvalidArgument(f"{where}: there is no column {missing[0]!r}; there are: {', '.join(present)}")
    columns = [holder(column) for column in (*wanted, *optional_columns(source))]
    return [column for column in dict.fromkeys(columns) if column in present]


def unicode_of(row: Row, text: str, column: str) -> str:
    """Returns a text of a row. Raises `InvalidArgument` for a lone surrogate, which no protobuf message can carry."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{row.where}: {column} is not valid Unicode: a lone surrogate at character {error.start}"
        ) from None
    return text


def kind_of_media(name: Any) -> str:
    """Returns the medium that the name of a field or the type of a part means: "image" for image_url; empty for no
    medium."""
    found = _MEDIA.search(name) if isinstance(name, str) else None
    return found[0].lower() if found else ""


def media_refusal(kind: str) -> str:
    """Returns the reason for which a medium is refused."""
    return f"training on {'images' if kind == 'image' else kind} is not available; use data whose questions are text"


def media_columns(columns: Iterable[str], read: Collection[str]) -> list[str]:
    """Returns the columns of media that are not in `read`."""
    return [name for name in columns if _MEDIA_COLUMN.fullmatch(name) and name not in read]


def refuse_media_column(where: str, column: str) -> None:
    """Raises `InvalidArgument` for a row that has a value in a column of media, without which its question is
    incomplete."""
    why = media_refusal(kind_of_media(column) or "image")
    raise InvalidArgument(
        f"{where}: the column {column!r} has media, which the prompt would not show: {why}, or remove the column if "
        "the questions make sense without it"
    )


def is_empty(value: Any) -> bool:
    """Whether a value is empty: null, an empty text, list or table, or a list or table of empty values."""
    if value is None or value == "":
        return True
    if isinstance(value, Mapping):
        return all(map(is_empty, value.values()))
    return isinstance(value, list) and all(map(is_empty, value))
