"""Results on standard output: tables for people, JSON for programs."""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.message import Message


class Output(StrEnum):
    """The format of a result."""

    TABLE = "table"
    JSON = "json"


def print_json(value: Any) -> None:
    """Writes plain values as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_message(message: "Message") -> None:
    """Writes a protobuf message as JSON, complete and with the field names of the contract."""
    from shoal.wire.json_form import json_form

    print_json(json_form(message))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Writes rows below their headings. Wraps only on a terminal, so that pipes get whole lines."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(*columns, box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, highlight=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    if not console.is_terminal:
        console.width = 4000
    console.print(table)


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Writes names and values, with the values aligned."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print(f"{name:<{width}}  {value}")
