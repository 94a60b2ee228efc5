import pytest

from shoal.config.tables.episodes import PARSERS_THAT_STOP
from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls import PARSERS, stop_strings
from tests.unit.shoal.episodes.tool_calls.examples import (
    BAD_ARGUMENTS,
    MALFORMED,
    OK,
    SEARCH,
    UNKNOWN_TOOL,
    brief,
    parse,
)


def test_the_text_is_the_first_required_parameter_and_attributes_are_others() -> None:
    turn = parse("call_tool", 'I look: <call_tool name="search" limit="5">\nK2\n</call_tool> and')
    assert brief(turn) == [("search", '{"limit": 5, "query": "K2"}', OK)]
    assert turn.content == "I look:  and"
    assert brief(parse("call_tool", '<call_tool  name="now" ></call>')) == [("now", "{}", OK)]


def test_attributes_that_the_tool_has_no_parameter_for_are_left_out() -> None:
    turn = parse("call_tool", '<call_tool name="search" fieldsOfStudy="Medicine, Law" query="K1">K2</call_tool>')
    assert brief(turn) == [("search", '{"query": "K2"}', OK)]


def test_calls_inside_thoughts_count_and_what_only_speaks_of_the_tag_does_not() -> None:
    turn = parse("call_tool", '<think>I use <call_tool> now: <call_tool name="search">K2</call_tool>')
    assert [call.name for call in turn.calls] == ["search"]
    assert turn.content == "<think>I use <call_tool> now:"
    assert not parse("call_tool", "<call_tool name=search>K2</call_tool>").calls


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ('<call_tool name="search">K2', "does not end with </call_tool>"),
        ('<call_tool name="search">K2<call_tool name="now"></call_tool>', "does not end with </call_tool>"),
        ('<call_tool name="search', "names no tool"),
        ('<call_tool name=" ">K2</call_tool>', "names no tool"),
        ('<call_tool name="search" limit=5>K2</call_tool><call_tool name="now"></call_tool>', "or by PARAMETER="),
        ('<call_tool name="search" year="<2000">K2</call>', "without < and > in the value"),
        ('<call_tool name="now">today</call_tool>', "now takes no argument"),
    ],
)
def test_a_malformed_call_says_what_is_wrong(text: str, detail: str) -> None:
    first, *others = parse("call_tool", text).calls
    assert first.status == MALFORMED and detail in first.detail, first
    assert [call.name for call in others] == (["now"] if text.endswith('"now"></call_tool>') else [])


def test_a_call_of_no_tool_and_a_value_of_another_type_are_told() -> None:
    first, second = parse(
        "call_tool", '<call_tool name="find">K2</call_tool><call_tool name="search" limit="few">K2</call_tool>'
    ).calls
    assert (first.status, second.status) == (UNKNOWN_TOOL, BAD_ARGUMENTS)
    assert "'few'" in second.detail and "'integer'" in second.detail


def test_an_optional_number_is_a_number() -> None:
    """As servers describe a parameter that may be left out."""
    optional = [{"type": "integer"}, {"type": "null"}], [{"type": "string"}, {"type": "null"}], [{"$ref": "#"}]
    properties = {"x": {}, **{name: {"anyOf": kinds} for name, kinds in zip("abc", optional, strict=True)}}
    tool = ToolDefinition("f", "", {"type": "object", "properties": properties})
    (call,) = parse("call_tool", '<call_tool name="f" a="5" b="5" c="5">5</call_tool>', [tool]).calls
    assert call.arguments_json == '{"a": 5, "b": "5", "c": "5", "x": "5"}'


def test_turns_stop_where_a_call_ends() -> None:
    assert stop_strings("call_tool", [SEARCH]) == ("</call_tool>", "</call>")
    assert stop_strings("call_tool", []) == ()
    assert {form for form in PARSERS if stop_strings(form, [SEARCH])} == set(PARSERS_THAT_STOP)
