"""A tool call as a person types it."""

import pytest

from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls import make_parser
from shoal.episodes.typed_call import typed_call
from shoal.errors import InvalidArgument

TOOL = ToolDefinition("take", "", {"type": "object", "properties": {"thing": {"type": "string"}}})


@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [('/take {"thing": "a lamp"}', "take", '{"thing": "a lamp"}'), ("/take", "take", "{}"), ("/fly  {} ", "fly", "{}")],
)
def test_a_line_is_read_as_a_call(line: str, name: str, arguments: str) -> None:
    (call,) = make_parser("hermes")(typed_call(line, [TOOL]), [TOOL], 1).calls
    assert (call.name, call.arguments_json) == (name, arguments)


def test_other_lines_and_those_without_tools_are_said() -> None:
    assert typed_call("take /it", [TOOL]) == "take /it"
    assert typed_call("/take {}", []) == "/take {}"


@pytest.mark.parametrize("arguments", ["lamp", "3", '{"thing": ', '{"thing": 1}]', "[" * 100_000])
def test_arguments_that_are_no_object_are_refused_with_an_example(arguments: str) -> None:
    with pytest.raises(InvalidArgument, match=r'/take {"thing": \.\.\.}$'):
        typed_call(f"/take {arguments}", [TOOL])
