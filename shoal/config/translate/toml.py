"""A translated configuration as TOML that people read: every line says where its value comes from."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.config.run import RunConfig
from shoal.config.translate.draft import Draft

_COLUMN = 44
_WIDTH = 120
_MOST_LINES = 4
"""Longest comment: an origin may be a list of a hundred data sets."""


def to_toml(draft: Draft, header: Sequence[str]) -> str:
    """The tables in RunConfig's order. What a system's default and ours agree on is left out."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in RunConfig.model_fields}
    for name, value in draft.values.items():
        section, _, key = name.partition(".")
        if value is not None and (name in draft.given or value != _own_default(section, key)):
            sections[section][key] = value
    lines = [f"# {line}".rstrip() for line in header]
    for section, values in sections.items():
        plain = {key: value for key, value in values.items() if not _is_tables(value)}
        if plain:
            lines += ["", f"[{section}]"]
            lines += [_line(key, value, draft.origins[f"{section}.{key}"]) for key, value in plain.items()]
        for key, value in values.items():
            if _is_tables(value):
                for table in value:
                    lines += ["", *_comment(draft.origins[f"{section}.{key}"]), f"[[{section}.{key}]]"]
                    lines += [f"{inner} = {toml_value(item)}" for inner, item in table.items()]
    return "\n".join(lines) + "\n"


def _own_default(section: str, key: str) -> Any:
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
    return [
        f"# {line}"
        for line in textwrap.wrap(origin, _WIDTH - 2, max_lines=_MOST_LINES, placeholder=" ...", break_on_hyphens=False)
    ]


def toml_value(value: Any) -> str:
    """A plain value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{json.dumps(key)} = {toml_value(item)}' for key, item in value.items())} }}"
    if isinstance(value, str):
        # A JSON string is a TOML basic string, once DEL is escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
