"""Writes docs/configuration.md from RunConfig: its sections, fields, types, defaults and docstrings.

python tools/configuration_docs.py            rewrites the page
python tools/configuration_docs.py --check    checks whether it is current, without writing
"""

import argparse
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shoal.config import RunConfig
from shoal.config.tables.section import Fixed, Live

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

HEADER = """\
# Configuration

<!-- Written by tools/configuration_docs.py from shoal/config; change the docstrings there. -->

One TOML file configures a run. `shoal train` and `shoal run start` read this file, and `--set section.field=value` on
the command line overrides a field. Unknown keys are errors. Every service receives the same configuration as JSON, and
the run's folder has the configuration as `config.json`. `shoal config show FILE` prints the configuration with every
default filled in. `shoal config check FILE` validates the file; `--deep` also loads the tokenizer and the data.

A changed value takes effect when a run is resumed with `--set` ([operations.md](operations.md#resuming-with-changes)).
*Live* fields may also change while a run is active, by `shoal run update`: at once, or from the next step on
([operations.md](operations.md#changing-an-active-run)). *Fixed* fields keep the value that they had at the start of the
run.
"""
_BOUNDS: tuple[tuple[type[Any], str, str], ...] = (
    (Ge, "ge", "at least {}"),
    (Gt, "gt", "above {}"),
    (Le, "le", "at most {}"),
    (Lt, "lt", "below {}"),
    (MinLen, "min_length", "at least {} long"),
    (MaxLen, "max_length", "at most {} long"),
)


def page() -> str:
    """Returns the text of docs/configuration.md."""
    parts = [HEADER]
    for name, field in RunConfig.model_fields.items():
        section = _section(field.annotation)
        assert section is not None, name
        changes = f"{_changes(field)}\n\n" if _changes(field) else ""
        heading = f"[[{name}]]" if get_origin(field.annotation) is list else f"[{name}]"
        parts.append(f"## `{heading}`\n\n{_intro(section)}{changes}{_table(section)}")
        for inner_name, inner_field in section.model_fields.items():
            inner = _section(inner_field.annotation)
            if inner is not None and inner_name == "sources" and name == "data":
                parts.append(f"### `[[{name}.{inner_name}]]`\n\n{_intro(inner)}{_table(inner)}")
        parts += _inner_tables(name, section, level=3)
    return "\n".join(parts)


def _inner_tables(path: str, section: type[BaseModel], *, level: int) -> Iterator[str]:
    """Yields the tables of fields that are tables themselves, at any depth."""
    for name, field in section.model_fields.items():
        inner = field.annotation
        if get_origin(inner) is dict:
            inner, name = _section(inner), f"{name}.<name>"
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield f"{'#' * level} `[{path}.{name}]`\n\n{_intro(inner)}{_table(inner)}"
            yield from _inner_tables(f"{path}.{name}", inner, level=level + 1)


def _intro(section: type[BaseModel]) -> str:
    own = section.__dict__.get("__doc__")
    # "The `[run]` table." repeats the heading.
    return f"{' '.join(own.split())}\n\n" if own and not own.startswith("The `[") else ""


def _table(section: type[BaseModel]) -> str:
    lines = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in section.model_fields.items():
        meaning = " ".join(f"{field.description or ''} {_changes(field)}".split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {_type(field)} | {_default(field)} | {meaning} |")
    return "\n".join(lines) + "\n"


def _changes(field: FieldInfo) -> str:
    """Says why a field or table is fixed, or when it changes in an active run; empty if neither."""
    fixed = [f"*Fixed*: {item.reason}." for item in field.metadata if isinstance(item, Fixed)]
    live = [f"*Live*: {item.when}." for item in field.metadata if isinstance(item, Live)]
    return " ".join(fixed + live)


def _type(field: FieldInfo) -> str:
    bounds = [
        text.format(_plain(getattr(item, key)))
        for item in field.metadata
        for kind, key, text in _BOUNDS
        if isinstance(item, kind)
    ]
    return ", ".join([_type_name(field.annotation), *bounds])


def _type_name(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in get_args(annotation))
    if origin in (Union, types.UnionType):
        return " or ".join(_type_name(item) for item in get_args(annotation) if item is not type(None))
    if origin is list:
        (item,) = get_args(annotation)
        return f"list of {'tables' if _section(item) else _type_name(item)}"
    if origin is dict:
        return "table of tables" if _section(annotation) else "table"
    if origin is Annotated:
        return _type_name(get_args(annotation)[0])
    names = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return names.get(annotation, "table")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel):
        return "see below"
    return "unset" if value is None else f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 2**31:
        exponent = value.bit_length() - 1
        return f"2^{exponent}" if value == 2**exponent else str(value)
    return json.dumps(value)


def _section(annotation: Any) -> type[BaseModel] | None:
    return next(_sections(annotation), None)


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for item in get_args(annotation):
        yield from _sections(item)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the page with the code, write nothing")
    if not parser.parse_args().check:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        raise SystemExit("docs/configuration.md differs from shoal/config; run: make docs")


if __name__ == "__main__":
    main()
