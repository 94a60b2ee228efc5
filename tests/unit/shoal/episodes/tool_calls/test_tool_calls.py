"""What all parsers have in common."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.conversation import ToolDefinition
from shoal.episodes.tool_calls import PARSERS, check_tools, make_parser
from shoal.errors import InvalidArgument
from tests.unit.shoal.episodes.tool_calls.examples import (
    ADD,
    BAD_ARGUMENTS,
    MALFORMED,
    OK,
    SEARCH,
    TOOLS,
    UNKNOWN_TOOL,
    parse,
)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        ('{"limit": 5}', "'query' is a required property"),
        ('{"query": 5}', "$.query: 5 is not of type 'string'"),
        ('{"query": "x", "limit": "5"}', "$.limit: '5' is not of type 'integer'"),
        ('{"query": "x", "page": 2}', "'page' was unexpected"),
    ],
)
def test_arguments_that_do_not_fit_the_schema_say_why(arguments: str, detail: str) -> None:
    (found,) = parse("hermes", call("search", arguments)).calls
    assert found.status == BAD_ARGUMENTS and detail in found.detail, found.detail


def test_a_long_fault_is_cut() -> None:
    (found,) = parse("hermes", call("search", '{"query": [' + "1," * 5000 + "1]}")).calls
    assert found.status == BAD_ARGUMENTS and len(found.detail) == 300, len(found.detail)


def test_a_turn_has_a_bounded_number_of_calls_and_the_rest_is_one_malformed_call() -> None:
    text = call("now", "{}") * 70
    calls = parse("hermes", text).calls
    assert len(calls) == 65 and calls[-1].status == MALFORMED and "64 calls" in calls[-1].detail
    assert "".join(found.raw for found in calls) == text, "something was dropped in silence"


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ([ToolDefinition("", "", {})], "has no name"),
        ([ToolDefinition("f", "", {}), ToolDefinition("f", "", {})], "2 tools are called 'f'"),
        ([ToolDefinition("f", "", {"type": "thing"})], "tool 'f': its parameters are not a usable JSON schema"),
        ([ToolDefinition("f", "", {"properties": {"x": {"$ref": "http://x/y"}}})], "refers to something outside"),
    ],
)
def test_tools_that_cannot_be_offered_are_refused(tools: list[ToolDefinition], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        check_tools(tools)


def test_a_schema_may_refer_to_its_own_parts_and_keywords_without_bounds_are_left_to_the_tool() -> None:
    schema = {
        "$defs": {"name": {"type": "string", "pattern": "^(a+)+$"}},
        "properties": {"name": {"$ref": "#/$defs/name"}, "tags": {"type": "array", "uniqueItems": True}},
        "patternProperties": {"^(b+)+$": {}},
        "additionalProperties": False,
    }
    tools = [ToolDefinition("f", "", schema)]
    check_tools(tools)
    name, key = "a" * 60 + "!", "b" * 60 + "!"
    (found,) = parse("hermes", call("f", f'{{"name": "{name}", "{key}": 1, "tags": [1, 1]}}'), tools).calls
    assert found.status == "ok", found.detail
    (found,) = parse("hermes", call("f", '{"name": 5}'), tools).calls
    assert found.status == BAD_ARGUMENTS


def test_an_unknown_form_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidArgument, match=r"'herms'; .*hermes, .*tag"):
        make_parser("herms")


FRAGMENTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "search", "arguments": ', '{"query": "x"}'),
        *("{", "}", "[", "]", '"', "\\", ",", ":", "\n", " ", "'", "(", ")"),
        *("<search>", "</search>", "<now>", "</now>"),
        *('<call_tool name="search"', ' limit="5"', ">", "</call_tool>"),
        *("<function=search>", "<parameter=query>", "</parameter>", "</function>", "<function_calls>", "search(query="),
        *(
            "<|tool_call>call:search{",
            'query:<|"|>',
            '<|"|>}',
            "<tool_call|>",
            "<tool_call>search",
            "<arg_key>query</arg_key>",
        ),
        *(
            "<arg_value>",
            "</arg_value>",
            "<|tool_call|>",
            "<|/tool_call|>",
            "[TOOL_CALLS]",
            "search[ARGS]",
            "```tool_code",
        ),
        *("<|start|>assistant", " to=functions.search", "<|message|>", "<|end|>", "<|call|>", "```"),
        *("</function_calls>", "<|python_tag|>", '{"name": "add", "parameters": ', "; ", '"""', "1", "null", "#", "ä"),
    ]
)


def parser_of(form: str):  # type: ignore[no-untyped-def]
    return make_parser(form, r"<(?P<name>\w+)>(?P<arguments>.*?)</\1>") if form == "regex" else make_parser(form)


@pytest.mark.parametrize("form", PARSERS)
@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.one_of(FRAGMENTS, st.text(max_size=5)), max_size=30).map("".join))
def test_no_text_breaks_a_parser_and_every_character_is_content_or_in_a_call(form: str, text: str) -> None:
    turn = parser_of(form)(text, TOOLS, 3)
    raw = "".join(found.raw for found in turn.calls)
    assert sorted("".join(turn.content.split()) + "".join(raw.split())) == sorted("".join(text.split()))
    assert all((found.status == "ok") == (not found.detail) for found in turn.calls)
    assert turn.calls or turn.content == text


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("tag", "<search>K2</search>"),
        ("call_tool", '<call_tool name="search">K2</call_tool>'),
        ("hermes", '<tool_call>{"name": "search", "arguments": {"query": "K2"}}</tool_call>'),
        ("qwen3_xml", "<tool_call><function=search><parameter=query>K2</parameter></function></tool_call>"),
        ("pythonic", '[search(query="K2")]'),
        ("llama3_json", '{"name": "search", "parameters": {"query": "K2"}}'),
        ("harmony", '<|channel|>commentary to=functions.search<|message|>{"query": "K2"}'),
        ("gemma4", '<|tool_call>call:search{query:<|"|>K2<|"|>}<tool_call|>'),
        ("glm", "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>K2</arg_value>\n</tool_call>"),
        ("phi4_mini", '<|tool_call|>[{"name": "search", "arguments": {"query": "K2"}}]<|/tool_call|>'),
        ("mistral", '[TOOL_CALLS]search[ARGS]{"query": "K2"}'),
    ],
)
def test_a_call_of_a_tool_that_is_not_offered_is_found_and_refused(form: str, text: str) -> None:
    (call,) = make_parser(form)(text, [ADD], 1, [SEARCH]).calls
    assert (call.name, call.status) == ("search", UNKNOWN_TOOL)
    assert "'search'" in call.detail and call.detail.endswith(": add.")
    (call,) = make_parser(form)(text, [], 1, [SEARCH]).calls
    assert "'search'" in call.detail and ":" not in call.detail


CALLS = {
    "hermes": '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
    "qwen3_xml": "<tool_call><function=now></function></tool_call>",
    "llama3_json": '{"name": "now", "parameters": {}}',
    "gemma4": "<|tool_call>call:now{}<tool_call|>",
    "glm": "<tool_call>now</tool_call>",
    "phi4_mini": '<|tool_call|>{"name": "now", "arguments": {}}<|/tool_call|>',
    "mistral": "[TOOL_CALLS]now[ARGS]{}",
    "pythonic": "<function_calls>now()</function_calls>",
    "regex": "CALL now: {}",
}
"""A call in each form whose calls do not count in thoughts."""
PATTERN = r"CALL (?P<name>\w+): (?P<arguments>\{.*?\})"


@pytest.mark.parametrize("form", CALLS)
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("<think>CALL</think>", 0),
        ("CALL</think>", 0),
        ("CALL</think>CALL", 1),
        ("<think>a</think>x<think>maybe CALL</think>done", 0),
        ("<think>a</think>CALL<think>CALL</think>CALL", 2),
        ("Well <think>CALL", 0),
        ("CALL Well <think>CALL", 1),
        ("<think>\n\n</think>\n\n<think>CALL</think> CALL", 1),
        ("[THINK]CALL[/THINK]CALL", 1),
        ("<thinking>CALL</thinking>", 0),
    ],
)
def test_calls_outside_of_every_thought_count_and_no_others(form: str, text: str, count: int) -> None:
    settings = {"pattern": PATTERN} if form == "regex" else {}
    calls = parse(form, text.replace("CALL", CALLS[form]), **settings).calls
    assert [call.status for call in calls] == [OK] * count, calls


def test_a_mark_of_thoughts_inside_a_call_belongs_to_the_call() -> None:
    text = call("search", '{"query": "what is <think>? And </thinking>"}') + call("now", "{}")
    assert [call.status for call in parse("hermes", text).calls] == [OK, OK]


def test_a_call_that_cannot_be_read_ends_before_a_thought() -> None:
    text = f"<tool_call>{{bad <think>{call('now', '{}')}</think>{call('now', '{}')}"
    assert [call.status for call in parse("hermes", text).calls] == [MALFORMED, OK]


NESTED = ToolDefinition(
    "f",
    "",
    {
        "type": "object",
        "$defs": {"P": {"type": "object", "properties": {"a": {"type": "integer"}}}, "L": {"enum": ["low", "high"]}},
        "properties": {
            "object": {"$ref": "#/$defs/P"},
            "optional": {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]},
            "level": {"$ref": "#/$defs/L"},
            "enum": {"enum": [1, 2]},
            "const": {"const": 3},
            "either": {"oneOf": [{"type": "integer"}, {"type": "boolean"}]},
            "all": {"allOf": [{"type": "array"}, {"minItems": 1}]},
            "same": {"$ref": "#/properties/enum"},
            "flag": {"type": "boolean"},
            "count": {"type": ["integer", "null"]},
            "names": {"type": "array", "items": {"type": "string"}},
            "text": {"type": ["string", "integer"]},
            "anything": {},
        },
    },
)


@pytest.mark.parametrize(
    ("parameter", "written", "value"),
    [
        ("object", '{"a": 1}', {"a": 1}),
        ("object", "{'a': 1}", {"a": 1}),
        ("optional", '{"a": 1}', {"a": 1}),
        ("optional", "null", None),
        ("optional", "None", None),
        ("level", "low", "low"),
        ("enum", "1", 1),
        ("const", "3", 3),
        ("either", "1", 1),
        ("either", "True", True),
        ("all", "[1]", [1]),
        ("same", "2", 2),
        ("flag", "True", True),
        ("flag", "false", False),
        ("count", "None", None),
        ("count", "7", 7),
        ("names", "['x', 'y']", ["x", "y"]),
        ("text", "8611", "8611"),
        ("anything", "8611", "8611"),
    ],
)
def test_a_value_that_is_written_as_text_is_what_the_schema_takes(parameter: str, written: str, value: Any) -> None:
    text = f"<tool_call><function=f><parameter={parameter}>{written}</parameter></function></tool_call>"
    (found,) = parse("qwen3_xml", text, [NESTED]).calls
    assert (found.status, json.loads(found.arguments_json)) == (OK, {parameter: value}), found.detail


@pytest.mark.parametrize(
    ("parameter", "written", "detail"),
    [
        ("flag", "yes", "'yes' is not of type 'boolean'"),
        ("enum", "3", "3 is not one of [1, 2]"),
        ("count", "1,000", "'1,000' is not of type 'integer', 'null'"),
        ("level", "middle", "'middle' is not one of ['low', 'high']"),
        ("object", "[1]", "[1] is not of type 'object'"),
    ],
)
def test_a_value_that_the_schema_takes_in_no_form_is_named_as_it_is_read(
    parameter: str, written: str, detail: str
) -> None:
    text = f"<tool_call><function=f><parameter={parameter}>{written}</parameter></function></tool_call>"
    (found,) = parse("qwen3_xml", text, [NESTED]).calls
    assert found.status == BAD_ARGUMENTS and detail in found.detail, found.detail
