import json

import pytest

from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls import stop_strings
from tests.unit.shoal.episodes.tool_calls.examples import ADD, BAD_ARGUMENTS, MALFORMED, NOW, OK, SEARCH, brief, parse


def test_the_content_of_a_tag_is_the_first_required_parameter_of_its_tool() -> None:
    turn = parse("tag", "I look: <search>\nK2\n</search> and <now></now>")
    assert brief(turn) == [("search", '{"query": "K2"}', OK), ("now", "{}", OK)]
    assert turn.content == "I look:  and"


def test_a_tool_without_required_parameters_gets_its_first_one() -> None:
    tool = ToolDefinition("f", "", {"type": "object", "properties": {"x": {"type": "integer"}, "y": {}}})
    assert brief(parse("tag", "<f> 12 </f>", [tool])) == [("f", '{"x": 12}', OK)]
    assert brief(parse("tag", "<f>twelve</f>", [tool])) == [("f", '{"x": "twelve"}', BAD_ARGUMENTS)]


def test_calls_inside_thoughts_count_and_other_tags_do_not() -> None:
    turn = parse("tag", "<think><search>K2</search></think><b>bold</b><find>x</find>")
    assert [call.name for call in turn.calls] == ["search"]
    assert turn.content == "<think></think><b>bold</b><find>x</find>"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("<search>K2", "does not end with </search>"),
        ("<search>K2<now></now>", "does not end with </search>"),
        ("<now>today</now>", "now takes no argument"),
    ],
)
def test_a_malformed_call_says_what_is_wrong(text: str, detail: str) -> None:
    first, *others = parse("tag", text).calls
    assert first.status == MALFORMED and detail in first.detail, first
    assert [call.name for call in others] == (["now"] if "<now></now>" in text else []), "it took others with it"


def test_a_tool_with_two_required_parameters_lacks_one() -> None:
    (call,) = parse("tag", "<add>1</add>").calls
    assert call.status == BAD_ARGUMENTS and "'b'" in call.detail
    assert json.loads(call.arguments_json) == {"a": 1}


def test_turns_stop_at_the_closing_tags_of_the_tools() -> None:
    assert stop_strings("tag", [SEARCH, ADD]) == ("</search>", "</add>")
    assert stop_strings("hermes", [SEARCH]) == ()


def test_without_tools_nothing_is_a_call() -> None:
    assert parse("tag", "<search>K2</search>", []).calls == ()
    assert NOW.name in brief(parse("tag", "<now> </now>"))[0]
