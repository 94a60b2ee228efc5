"""Parsers of untrusted or damaged texts and schemas: every fault is a `ValueError`.

The parsers of the libraries raise other errors for deep nesting, for values that a type does not have, and for a few
unexpected texts. Values that are nested deeper than `MAX_DEPTH` are refused, since recursive code reads them.
"""

import ast
import importlib
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

MAX_DEPTH = 64
_MAX_VALUES = 1_000_000
"""The most values of a YAML file. With aliases a few lines can mean more values than fit into memory."""
_TOO_DEEP = f"the value is nested deeper than {MAX_DEPTH} levels"


def parse_json(text: str | bytes, **hooks: Any) -> Any:
    """Returns the values of a JSON text. `hooks` are arguments of `json.loads`. Raises `ValueError`."""
    try:
        value = json.loads(text, **hooks)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    opened = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    if opened > MAX_DEPTH:
        check_depth(value)
    return value


class RepeatedKey(ValueError):
    """A key that an object has twice."""


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Makes an object, as an `object_pairs_hook` of `json.loads`. Raises `RepeatedKey` for a key that occurs twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise RepeatedKey(f"the key {name!r:.80} occurs twice, so one of the two values would be lost")
            seen.add(name)
    return values


def parse_yaml(text: str) -> Any:
    """Returns the values of a YAML text. Raises `ValueError`, even for a text that refers to itself."""
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except Exception as error:  # For dates and numbers that do not exist, the library raises many kinds of errors.
        raise ValueError(f"the YAML has a value that cannot be read: {error}") from None
    check_depth(value)
    return value


def parse_python(text: str) -> ast.Module:
    """Returns the tree of a Python text. Raises `ValueError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from None
    except (MemoryError, RecursionError):  # Python raises these for deep nesting.
        raise ValueError("it is nested too deeply") from None
    return tree


def check_depth(value: Any) -> None:
    """Raises `ValueError` for values that are nested too deeply, contain themselves, or are too many."""
    left, level, depth = _MAX_VALUES, [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        left -= len(level)
        if left < 0:
            raise ValueError(f"the value has more than {_MAX_VALUES} values, or contains itself")
        inner: list[Any] = []
        for each in level:
            inner += each.values() if isinstance(each, Mapping) else each if isinstance(each, list) else ()
            if len(inner) > left:
                raise ValueError(f"the value has more than {_MAX_VALUES} values, or contains itself")
        level, depth = inner, depth + 1


def compile_schema(schema: Any, keywords: Mapping[str, Any]) -> Any:
    """Returns the `jsonschema` validator of a self-contained schema. The checks in `keywords` replace the library's.

    Without "$schema" the draft is 2020-12 (json-schema.org). Raises `ValueError` for a value that is not a schema, and
    for a schema that refers to another document, which is not fetched.
    """
    jsonschema = importlib.import_module("jsonschema")
    referencing = importlib.import_module("referencing.jsonschema")
    registry = importlib.import_module("referencing").Registry()
    if not isinstance(schema, dict | bool):
        raise ValueError("a schema must be an object or a boolean")
    try:
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
        resource = referencing.specification_with(kind.META_SCHEMA["$schema"]).create_resource(schema)
        _check_references(resource, registry.resolver_with_root(resource))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except jsonschema.exceptions.SchemaError as error:
        raise ValueError(str(error)) from None
    except importlib.import_module("referencing.exceptions").Unresolvable as error:
        raise ValueError(f"the schema refers to something outside of the schema: {error}") from None
    if isinstance(schema, dict):
        # With this key jsonschema would look the class up again after a reference, without `keywords`.
        schema = {name: value for name, value in schema.items() if name != "$schema"}
    known = {name: check for name, check in keywords.items() if name in kind.VALIDATORS}
    return jsonschema.validators.extend(kind, known)(schema, registry=registry)


def _check_references(schema: Any, resolver: Any) -> None:
    """Raises `Unresolvable` for a reference, at any depth, to something outside of the schema."""
    reference = schema.contents.get("$ref") if isinstance(schema.contents, dict) else None
    if isinstance(reference, str):
        resolver.lookup(reference)
    for inner in schema.subresources():
        _check_references(inner, resolver.in_subresource(inner))
