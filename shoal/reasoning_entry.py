"""Entries of the package `reasoning-gym`, as JSON text from which an entry is restored exactly.

Some scorers of the package distinguish tuples from lists in the entry's metadata, so plain JSON is not enough. An entry
travels as one text because numbers of a `google.protobuf.Value` are doubles. This module is outside of `shoal.data`, so
that verifier processes, which start often, need not import that package.
"""

import json
from typing import Any

from shoal.parsing import unique_keys

_TUPLE = "__tuple__"
_MAPPING = "__mapping__"


def entry_to_text(entry: Any) -> str:
    """Writes an entry as text. Raises TypeError for anything but JSON's types, tuples and mappings."""
    return json.dumps(_tagged(entry), ensure_ascii=True, separators=(",", ":"))


def entry_from_text(text: str) -> Any:
    """Reads the text that `entry_to_text` wrote. Raises ValueError for any other text, also if a key occurs twice."""
    return json.loads(text, object_pairs_hook=lambda pairs: _untagged(unique_keys(pairs)))


def _tagged(value: Any) -> Any:
    if isinstance(value, tuple):
        return {_TUPLE: [_tagged(item) for item in value]}
    if isinstance(value, list):
        return [_tagged(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _tagged(item) for key, item in value.items()}
        return {_MAPPING: [[_tagged(key), _tagged(item)] for key, item in value.items()]}
    return value


def _untagged(value: dict[str, Any]) -> Any:
    if value.keys() == {_TUPLE}:
        return tuple(value[_TUPLE])
    if value.keys() == {_MAPPING}:
        return dict(value[_MAPPING])
    return value
