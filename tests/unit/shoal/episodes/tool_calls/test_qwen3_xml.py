import json

import pytest

from shoal.conversation import ToolDefinition
from tests.unit.shoal.episodes.tool_calls.examples import BAD_ARGUMENTS, MALFORMED, OK, UNKNOWN_TOOL, brief, parse


def call(name: str, **parameters: str) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def test_values_are_text_or_what_the_schema_says() -> None:
    first = call("search", query="  K2\nor 8611 m", limit="3")
    turn = parse("qwen3_xml", f"I look.\n{first}\n{call('now')}")
    assert brief(turn) == [("search", '{"query": "  K2\\nor 8611 m", "limit": 3}', OK), ("now", "{}", OK)]
    assert turn.content == "I look."


def test_a_text_that_looks_like_a_number_stays_a_text_where_the_schema_wants_one() -> None:
    assert brief(parse("qwen3_xml", call("search", query="8611"))) == [("search", '{"query": "8611"}', OK)]


_TYPED = {
    "boolean": {"type": "boolean"},
    "null": {"type": ["integer", "null"]},
    "list": {"type": "array", "items": {"type": "boolean"}},
    "text": {"type": ["boolean", "string"]},
    "choice": {"enum": ["TRUE", True]},
}


@pytest.mark.parametrize(
    ("parameter", "written", "value"),
    [
        *(("boolean", written, True) for written in ("true", "True", "TRUE")),
        *(("boolean", written, False) for written in ("false", "False", "FALSE")),
        *(("null", written, None) for written in ("null", "None", "NULL", "NONE", "none", "Null")),
        ("list", "[TRUE, false, False]", [True, False, False]),
        *((parameter, "TRUE", "TRUE") for parameter in ("text", "choice")),
    ],
)
def test_booleans_and_nulls_are_read_in_any_case_where_the_schema_takes_no_such_text(
    parameter: str, written: str, value: object
) -> None:
    tool = ToolDefinition("f", "", {"type": "object", "properties": _TYPED})
    (found,) = parse("qwen3_xml", call("f", **{parameter: written}), [tool]).calls
    assert (found.status, json.loads(found.arguments_json)) == (OK, {parameter: value}), found


@pytest.mark.parametrize("written", ["yes", "1", "TRUE!", "true false", "Nil"])
def test_other_words_are_no_booleans(written: str) -> None:
    tool = ToolDefinition("f", "", {"type": "object", "properties": _TYPED})
    (found,) = parse("qwen3_xml", call("f", boolean=written), [tool]).calls
    assert found.status == BAD_ARGUMENTS, found


def test_an_unknown_tool_keeps_its_arguments() -> None:
    assert brief(parse("qwen3_xml", call("find", x="1"))) == [("find", '{"x": "1"}', UNKNOWN_TOOL)]


@pytest.mark.parametrize(
    ("inside", "detail"),
    [
        ("", "a call needs <function=NAME> first"),
        ('{"name": "now", "arguments": {}}', "a call needs <function=NAME> first"),
        ("<function=>\n</function>", "a call needs <function=NAME> first"),
        ("<function=search><parameter=query>K2</function>", "'query' does not end with </parameter>"),
        ("<function=search><parameter=query>K2</parameter>", "must come </function> and </tool_call>"),
        ("<function=search>K2</function>", "must come </function> and </tool_call>"),
    ],
)
def test_a_malformed_call_says_what_is_wrong_and_loses_only_itself(inside: str, detail: str) -> None:
    bad, good = parse("qwen3_xml", f"<tool_call>{inside}</tool_call>{call('now')}").calls
    assert bad.status == MALFORMED and detail in bad.detail, bad
    assert (good.name, good.status) == ("now", OK)


def test_a_call_that_is_cut_off_is_malformed_and_named() -> None:
    (found,) = parse("qwen3_xml", "<tool_call>\n<function=search>\n<parameter=query>\nK").calls
    assert (found.name, found.status) == ("search", MALFORMED)
