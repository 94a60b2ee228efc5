"""Rows from JSONL and Parquet files, and from Hugging Face data sets."""

import hashlib
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.config.tables.data import SourceConfig
from shoal.data.json_text import parse_json_text
from shoal.data.rows import (
    Row,
    RowSource,
    digest_of_rows,
    is_empty,
    media_columns,
    present_columns,
    refuse_media_column,
)
from shoal.errors import InvalidArgument
from shoal.paths import local_path, why_unread

if TYPE_CHECKING:
    import pyarrow

_BATCH_ROWS = 10_000
_MEDIA_ROWS = 64
"""The number of rows with media that are examined together. Each row may have megabytes."""

_Convert = Callable[[Any], Any]


def read_files(source: SourceConfig) -> RowSource:
    """Reads all rows of the files that `source.path` names, in order. Raises `InvalidArgument` for a file that is
    missing, of another kind, or malformed (with the line, from 1)."""
    assert source.path is not None
    names = [source.path] if isinstance(source.path, str) else source.path
    digests: dict[str, str] = {}
    rows = [row for name in names for row in _read_file(name, source, digests)]
    if len(names) > 1:
        rows = [replace(row, number=number) for number, row in enumerate(rows)]
    return RowSource(" + ".join(names), rows, digests)


def _read_file(name: str, source: SourceConfig, digests: dict[str, str]) -> list[Row]:
    """Reads the rows of one file, and adds the digest of the file."""
    if "://" in name:
        raise InvalidArgument(
            f"data source {name}: `path` of a source names a file on the coordinator's machine, not a URL; download "
            "the file first, or name a data set of the Hugging Face hub as `dataset`"
        )
    path = local_path(name, "data.sources: path")
    if not path.is_file():
        raise InvalidArgument(
            f"data source {path}: there is no such file on the coordinator's machine; give the path of a "
            ".jsonl or .parquet file"
        )
    suffix = path.suffix.lower()
    try:
        with path.open("rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
        if suffix in (".jsonl", ".ndjson"):
            rows = list(_jsonl(path))
        elif suffix == ".parquet":
            rows = list(_parquet(path, source))
        else:
            raise InvalidArgument(
                f"data source {path}: {suffix or 'no suffix'!r} is not supported; use .jsonl or .parquet"
            )
    except OSError as error:
        raise InvalidArgument(f"data source {path} cannot be read: {why_unread(error)}") from None
    if not rows:
        raise InvalidArgument(f"data source {path} is empty: a data source needs at least one row")
    return rows


def _jsonl(path: Path) -> Iterator[Row]:
    number = 0
    with path.open("rb") as file:
        for line_number, line in enumerate(file, start=1):
            where = f"{path}:{line_number}"
            if line_number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield Row(number, where, _object(line, where, is_first=number == 0))
                number += 1


def _object(line: bytes, where: str, *, is_first: bool) -> dict[str, Any]:
    problem, values = "", None
    try:
        values = parse_json_text(line.decode("utf-8"))
    except ValueError as error:
        problem = f"not a line of JSON: {error}"
    if isinstance(values, dict):
        return values
    if is_first and line.lstrip().startswith(b"["):
        raise InvalidArgument(
            f"{where}: the file begins with '[', so the file is one JSON array, but JSONL has one object on each line, "
            "without brackets and commas around the objects; convert the file with: jq -c '.[]' ARRAY.json > "
            "ROWS.jsonl"
        )
    problem = _to_delete(line) or problem or f"each line must be one JSON object (found: {type(values).__name__})"
    if line.strip() in (b"{", b"[", b"}", b"]"):
        problem += "; in JSONL each object is whole on one line: convert the file with: jq -c . FILE.json > ROWS.jsonl"
    raise InvalidArgument(f"{where}: {problem}")


def _to_delete(line: bytes) -> str:
    """Describes what a line has besides its object, such as a comma, with the cure; empty for any other fault."""
    text = line.decode("utf-8", "replace").rstrip()
    try:
        value, end = json.JSONDecoder().raw_decode(text, len(text) - len(text.lstrip()))
    except json.JSONDecodeError as error:
        # Python 3.13 reports the comma itself, earlier versions what follows.
        at = error.pos + text.startswith(",", error.pos)
        before, after = text[:at].rstrip(), text[at:].lstrip()
        if before.endswith(",") and after.startswith(("}", "]")):
            return f"delete the comma before {after[0]!r}, at column {len(before)}"
        return ""
    except (ValueError, RecursionError):
        return ""
    rest = text[end:].lstrip()
    if not isinstance(value, dict) or not rest:
        return ""
    column = len(text) - len(rest) + 1
    if rest.lstrip(", \t").startswith("{"):
        return f"another object begins after the first, at column {column}: put each object on a separate line"
    return (
        f"delete {rest!r:.40} after the object, at column {column}: JSONL has nothing between the objects of its lines"
    )


def _parquet(path: Path, source: SourceConfig) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            columns = present_columns(source, schema.names, str(path))
            for column in _media_in(schema, columns):
                parts = file.iter_batches(batch_size=_MEDIA_ROWS, columns=[column])
                _check_media(column, (part.column(0) for part in parts), f"{path} row")
            yield from _table_rows(file.iter_batches(columns=columns), str(path))
    except (pyarrow.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(f"{path} cannot be read as Parquet: {error}") from None


def read_dataset(source: SourceConfig) -> RowSource:
    """Reads all rows of one split of a data set: a hub name, a folder of data files, or a folder that
    `Dataset.save_to_disk` wrote.

    Raises `InvalidArgument` when the data set does not exist, cannot be reached or lacks a column, and when the package
    `datasets` is not installed.
    """
    name = source.dataset
    assert name is not None
    try:
        import datasets
    except ImportError:
        raise InvalidArgument(f"data set {name}: the package datasets is missing: pip install 'shoal[data]'") from None
    folder = local_path(name, "data.sources: dataset")
    try:
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            saved = datasets.load_from_disk(str(folder))
            table = saved[source.split] if isinstance(saved, datasets.DatasetDict) else saved
        else:
            location = str(folder) if folder.is_dir() else name
            table = datasets.load_dataset(location, source.dataset_config, split=source.split)
    # These cover the network, the file system, the package's own errors, and a missing split or configuration.
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InvalidArgument(f"data set {name} (split {source.split}) cannot be loaded: {cause}") from error
    columns = present_columns(source, table.column_names, f"data set {name}")
    label = "/".join(part for part in (name, source.dataset_config, source.split) if part)
    for column in _media_in(table.features.arrow_schema, columns):
        parts = table.select_columns([column]).with_format("arrow").iter(batch_size=_MEDIA_ROWS)
        _check_media(column, (part.column(0) for part in parts), f"{label} row")
    batches = (
        batch
        for part in table.select_columns(columns).with_format("arrow").iter(batch_size=_BATCH_ROWS)
        for batch in part.to_batches()
    )
    rows = [*_table_rows(batches, label)]
    if not rows:
        raise InvalidArgument(f"data set {label} is empty: a data set needs at least one row")
    return RowSource(label, rows, {label: digest_of_rows(rows)})


def _table_rows(batches: Iterable["pyarrow.RecordBatch"], name: str) -> Iterator[Row]:
    """Yields the rows of a table. A floating-point number of 16 or 32 bits becomes the shortest decimal that rounds to
    the number: 0.1, not 0.10000000149011612."""
    import pyarrow

    number = 0
    for batch in batches:
        convert = _conversion(pyarrow.struct(list(batch.schema)))
        for values in batch.to_pylist():
            yield Row(number, f"{name} row {number + 1}", convert(values) if convert else values, is_of_table=True)
            number += 1


def _media_in(schema: "pyarrow.Schema", read: Collection[str]) -> list[str]:
    """Returns the columns of media that are not in `read`: by their names, or by Hugging Face's types of images, sounds
    and videos."""
    named = media_columns(schema.names, read)
    return [field.name for field in schema if field.name in named or (field.name not in read and _is_media(field.type))]


def _is_media(kind: "pyarrow.DataType") -> bool:
    import pyarrow

    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return _is_media(kind.value_type)
    return pyarrow.types.is_struct(kind) and {field.name for field in kind.fields} == {"bytes", "path"}


def _check_media(column: str, parts: Iterable["pyarrow.Array"], rows: str) -> None:
    """Raises `InvalidArgument` for the first row with a value in a column of media. `rows` begins the row's name."""
    for number, value in enumerate(itertools.chain.from_iterable(parts), start=1):
        if value.is_valid and not is_empty(value.as_py()):
            refuse_media_column(f"{rows} {number}", column)


def _conversion(kind: "pyarrow.DataType") -> _Convert | None:
    """Returns a function that converts narrow numbers in values of a type to decimals; None if there are none."""
    import pyarrow

    if pyarrow.types.is_float16(kind) or pyarrow.types.is_float32(kind):
        narrow = np.float16 if pyarrow.types.is_float16(kind) else np.float32
        return lambda value: None if value is None else float(str(narrow(value)))
    if pyarrow.types.is_struct(kind):
        inner = {field.name: each for field in kind.fields if (each := _conversion(field.type)) is not None}
        if not inner:
            return None
        return lambda row: None if row is None else row | {name: each(row[name]) for name, each in inner.items()}
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)
    each = _conversion(kind.value_type) if is_list else None
    return None if each is None else lambda value: None if value is None else [each(item) for item in value]
