"""Writes a translated configuration as TOML for people: each line names the origin of its value."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.config.run import RunConfig
from shoal.translate.shared.draft import Draft

TABLES = ("environments",)
"""Sections that are a list of tables."""
_COLUMN = 44
_WIDTH = 120
_MAX_LINES = 4
"""The most lines of a comment, since an origin may list a hundred data sets."""


def to_toml(draft: Draft, header: Sequence[str]) -> str:
    """Writes the tables in RunConfig's order, without the defaults on which the other system and Shoal agree."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in RunConfig.model_fields}
    for name, value in draft.values.items():
        section, _, key = name.partition(".")
        if name in TABLES:
            continue
        if value is not None and (name in draft.explicit or value != _default(section, key)):
            sections[section][key] = value
    lines = [f"# {line}".rstrip() for line in header]
    for section, values in sections.items():
        if section in TABLES:
            lines += _tables(section, draft.values.get(section) or [], draft)
        plain = {key: value for key, value in values.items() if not _is_tables(value)}
        if plain:
            lines += ["", f"[{section}]"]
            lines += [_line(key, value, draft.origins[f"{section}.{key}"]) for key, value in plain.items()]
        for key, value in values.items():
            if _is_tables(value):
                lines += _tables(f"{section}.{key}", value, draft)
    return "\n".join(lines) + "\n"


def _tables(name: str, tables: Sequence[Mapping[str, Any]], draft: Draft) -> list[str]:
    lines: list[str] = []
    for table in tables:
        lines += ["", *_comment(draft.origins[name]), f"[[{name}]]"]
        lines += [f"{inner} = {toml_value(item)}" for inner, item in table.items()]
    return lines


def _default(section: str, key: str) -> Any:
    annotation = RunConfig.model_fields[section].annotation
    fields = getattr(annotation, "model_fields", {})
    if key not in fields or fields[key].is_required():
        return None
    return fields[key].get_default(call_default_factory=True, validated_data={})


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _line(key: str, value: Any, origin: str) -> str:
    setting = f"{key} = {toml_value(value)}"
    whole = f"{setting:<{_COLUMN}}  # {' '.join(origin.split())}"
    if len(whole) <= _WIDTH:
        return whole.rstrip()
    return "\n".join([*_comment(origin), setting])


def _comment(origin: str) -> list[str]:
    lines = textwrap.wrap(origin, _WIDTH - 2, max_lines=_MAX_LINES, placeholder=" ...", break_on_hyphens=False)
    return [f"# {line}" for line in lines]


def toml_value(value: Any) -> str:
    """Formats a plain value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{json.dumps(key)} = {toml_value(item)}' for key, item in value.items())} }}"
    if isinstance(value, str):
        # A JSON string is a TOML basic string, if DEL is escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
