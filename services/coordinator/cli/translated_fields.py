"""`shoal config translate --fields`: the translation of each field of another trainer."""

from typing import Any

from services.coordinator.cli.shared.output import Output, print_json, print_table
from shoal.translate import System
from shoal.translate.shared.field import NOT_YET, Fate, Field


def print_fields(system: System, output: Output) -> None:
    """Prints the fields that a system always sets, and the rows of the system's table in the order of their names."""
    rows = sorted(system.table, key=lambda row: row.name)
    always = {name: {"value": value, "why": why} for name, (value, why) in system.implied.items()}
    if output is Output.JSON:
        print_json({"always": always, "fields": [_plain(row) for row in rows]})
        return
    cells = [("(always)", "", f"{name} = {_shown(fixed['value'])}", fixed["why"]) for name, fixed in always.items()]
    for row in rows:
        here = ", ".join(row.to) if row.fate is Fate.MAPPED and row.to else str(row.fate)
        default = "" if row.default is None else _shown(row.default)
        cells.append((", ".join(row.spellings), default, here, _note(row)))
    print_table(("FIELD", "ITS DEFAULT", "HERE", "NOTE"), cells)


def _plain(row: Field) -> dict[str, Any]:
    return {
        "name": row.name,
        "aliases": row.aliases,
        "default": row.default,
        "fate": row.fate,
        "to": row.to,
        "note": _note(row),
    }


def _note(row: Field) -> str:
    return f"{row.why}: {NOT_YET[row.why]}" if row.fate is Fate.NOT_YET else row.why


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "[]"
    return str(value) or '""'
