"""Values of Arrow tables, the form of Parquet files and Hugging Face data sets."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.data.rows import is_empty, media_columns, refuse_media_column

if TYPE_CHECKING:
    import pyarrow

MEDIA_ROWS = 64
"""Rows of media that are examined together. Each row may have megabytes."""

_Convert = Callable[[Any], Any]


def rows_of(batch: "pyarrow.RecordBatch") -> Iterator[dict[str, Any]]:
    """Yields the rows of a batch. A number of 16 or 32 bits becomes the shortest decimal with these bits: 0.1, not
    0.10000000149011612."""
    conversions = {field.name: convert for field in batch.schema if (convert := _conversion(field.type)) is not None}
    values: dict[str, Any]
    for values in batch.to_pylist():
        yield values | {name: convert(values[name]) for name, convert in conversions.items()}


def media_in(schema: "pyarrow.Schema", read: Collection[str]) -> list[str]:
    """Returns the columns of media that are not in `read`. It recognizes them by name, or by Hugging Face's types of
    images, sounds and videos."""
    named = media_columns(schema.names, read)
    return [field.name for field in schema if field.name in named or (field.name not in read and _is_media(field.type))]


def _is_media(kind: "pyarrow.DataType") -> bool:
    import pyarrow

    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return _is_media(kind.value_type)
    return pyarrow.types.is_struct(kind) and {field.name for field in kind.fields} == {"bytes", "path"}


def check_media(column: str, parts: Iterable["pyarrow.Array"], rows: str) -> None:
    """Raises `InvalidArgument` for the first row with a value in a column of media. `rows` begins the row's name."""
    number = 0
    for part in parts:
        for value in part:
            number += 1
            if value.is_valid and not is_empty(value.as_py()):
                refuse_media_column(f"{rows} {number}", column)


def _conversion(kind: "pyarrow.DataType") -> _Convert | None:
    """Returns a function that converts narrow numbers in values of a type to decimals; None if the type has none."""
    import pyarrow

    if pyarrow.types.is_float16(kind) or pyarrow.types.is_float32(kind):
        narrow = np.float16 if pyarrow.types.is_float16(kind) else np.float32
        return lambda value: None if value is None else float(str(narrow(value)))
    if pyarrow.types.is_struct(kind):
        inner = {field.name: convert for field in kind.fields if (convert := _conversion(field.type)) is not None}
        return _for_tables(inner) if inner else None
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)
    each = _conversion(kind.value_type) if is_list else None
    return None if each is None else lambda value: None if value is None else [each(item) for item in value]


def _for_tables(inner: dict[str, _Convert]) -> _Convert:
    def convert(value: Any) -> Any:
        return None if value is None else value | {name: each(value[name]) for name, each in inner.items()}

    return convert
