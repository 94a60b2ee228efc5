"""JSON schemas (json-schema.org) that stand alone."""

import importlib
from collections.abc import Mapping
from typing import Any


def compile_schema(schema: Any, keywords: Mapping[str, Any]) -> Any:
    """Returns the `jsonschema` validator of a schema, with checks of our own in place of the library's by keyword.

    Without "$schema" the draft is 2020-12. Raises `ValueError` for what is no schema, and for one that refers to
    another document, which is not fetched.
    """
    jsonschema = importlib.import_module("jsonschema")
    referencing = importlib.import_module("referencing.jsonschema")
    registry = importlib.import_module("referencing").Registry()
    if not isinstance(schema, dict | bool):
        raise ValueError("a schema is an object")
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
        raise ValueError(f"it refers to something outside of it: {error}") from None
    if isinstance(schema, dict):
        # By this key jsonschema would look the class up again below a reference, without `keywords`.
        schema = {name: value for name, value in schema.items() if name != "$schema"}
    known = {name: check for name, check in keywords.items() if name in kind.VALIDATORS}
    return jsonschema.validators.extend(kind, known)(schema, registry=registry)


def _check_references(schema: Any, resolver: Any) -> None:
    """Raises `Unresolvable` for a reference, at any depth, to something outside the schema."""
    reference = schema.contents.get("$ref") if isinstance(schema.contents, dict) else None
    if isinstance(reference, str):
        resolver.lookup(reference)
    for inner in schema.subresources():
        _check_references(inner, resolver.in_subresource(inner))
