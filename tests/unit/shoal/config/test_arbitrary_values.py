"""Whatever values a configuration has, it is valid, or refused with the fields at fault.

`SHOAL_FUZZ_EXAMPLES` sets the number of examples of each test; more than the default are drawn anew each time.
"""

import os
from typing import Any

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from hypothesis import HealthCheck, given, settings

from services.coordinator.cli.config_check import check_config
from shoal.config import RunConfig, dump_config, parse_config
from shoal.config.changes import changed_config
from shoal.config.load import config_digest, config_struct
from shoal.config.notes import notes_on
from shoal.errors import InvalidArgument, ShoalError
from shoal.rpc.errors import to_status
from tests.support.config_values import BASE, anything, changes, nested
from tests.support.fuzzed_files.trial import check_message

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
