"""The forms of gpt-oss, Gemma 3 and 4, GLM, Phi-4-mini and Mistral."""

import json

import pytest

from shoal.conversation import ToolDefinition
from tests.unit.shoal.episodes.tool_calls.examples import BAD_ARGUMENTS, MALFORMED, OK, UNKNOWN_TOOL, brief, parse

SEARCH = ("search", '{"query": "K2"}', OK)
NOW = ("now", "{}", OK)
TYPED = ToolDefinition(
    "f", "",
    {"type": "object", "properties": {"text": {"type": "string"}, "numbers": {"type": "array"}, "none": {},
     "flag": {"type": "boolean"}, "table": {"type": "object"}}},
)  # fmt: skip
VALUES = {"text": "5, {a}", "numbers": [1, -2.5e3, "x"], "flag": True, "table": {"a": {"b": None}}, "none": None}


@pytest.mark.parametrize(
    ("form", "text", "calls", "content"),
    [
        ("harmony", ' to=functions.search<|channel|>commentary json<|message|>{"query": "K2"}', [SEARCH], ""),
        (
            "harmony",
            "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.search "
            '<|constrain|>json<|message|>{"query": "K2"}<|call|>',
            [SEARCH],
            "<|channel|>analysis<|message|>I look.<|end|>",
        ),
        (
            "harmony",
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.now"
            "<|message|><|end|><|start|>assistant<|channel|>final<|message|>to=functions.search{}",
            [NOW],
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>"
            "to=functions.search{}",
        ),
        ("gemma4", 'I look.<|tool_call>call:search{query:<|"|>K2<|"|>}<tool_call|>', [SEARCH], "I look."),
        ("gemma4", "<|channel>thought\nHm.<channel|><|tool_call>call:now{}<tool_call|>" * 2, [NOW, NOW], None),
        ("glm", "I look.\n<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>K2</arg_value>\n</tool_call>",
         [SEARCH], "I look."),
        ("glm", "<tool_call>search<arg_key>query</arg_key><arg_value>K2</arg_value></tool_call>"
         "<tool_call>now</tool_call>", [SEARCH, NOW], ""),
        ("phi4_mini", '<|tool_call|>[{"name": "search", "arguments": {"query": "K2"}}, '
         '{"name": "now", "parameters": {}}]<|/tool_call|>', [SEARCH, NOW], ""),
        ("phi4_mini", '<|tool_call|>{"type": "function", "function": {"name": "now", "arguments": {}}}<|/tool_call|>',
         [NOW], ""),
        ("mistral", 'I look.[TOOL_CALLS] [{"name": "search", "arguments": {"query": "K2"}, "id": "call00101"}]',
         [SEARCH], "I look."),
        ("mistral", '[TOOL_CALLS]search[CALL_ID]call00101[ARGS]{"query": "K2"}[TOOL_CALLS]now{}', [SEARCH, NOW], ""),
        ("pythonic", 'I look.\n```tool_code\nsearch(query="K2")\nnow()\n```', [SEARCH, NOW], "I look."),
        *((form, "It is {4}.", [], "It is {4}.") for form in ("harmony", "gemma4", "glm", "phi4_mini", "mistral")),
    ],
)  # fmt: skip
def test_calls_are_found_and_the_content_is_without_them(
    form: str, text: str, calls: list[tuple[str, str, str]], content: str | None
) -> None:
    turn = parse(form, text)
    assert brief(turn) == calls
    if content is not None:
        assert turn.content == content


@pytest.mark.parametrize(
    ("form", "text", "fault"),
    [
        (
            "harmony",
            '<|channel|>commentary to=functions.search<|message|>{"query": "K',
            "Unterminated string starting at character 63",
        ),
        ("harmony", "<|channel|>commentary to=functions.search<|message|>K2<|call|>", "Expecting value"),
        ("harmony", '<|channel|>commentary to=functions.search<|message|>{"query": "K2"} now<|call|>', "stands 'now'"),
        ("gemma4", '<|tool_call>call:search{query:<|"|>K2}<tool_call|>', 'does not end with <|"|>'),
        ("gemma4", "<|tool_call>call:search{query:K2}<tool_call|>", "expecting a value at character 31"),
        ("gemma4", '<|tool_call>call:search{query:<|"|>K2<|"|>}', "expecting <tool_call|>"),
        ("gemma4", "<|tool_call>search{}<tool_call|>", "call:NAME{"),
        ("gemma4", "<|tool_call>call:search{a:1,a:2}<tool_call|>", "'a' is given twice"),
        ("gemma4", f"<|tool_call>call:search{{a:{'[' * 40}{']' * 40}}}<tool_call|>", "nested too deeply"),
        ("glm", "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>K2</tool_call>", "</arg_value>"),
        ("glm", "<tool_call>search\n<arg_key>query</arg_key>K2</tool_call>", "must come </tool_call>"),
        ("glm", '<tool_call>{"name": "now", "arguments": {}}</tool_call>', "the name of the tool first"),
        ("phi4_mini", '<|tool_call|>[{"name": "now", "arguments": {}}<|/tool_call|>', "does not end with ]"),
        ("phi4_mini", '<|tool_call|>[{"name": "now", "arguments": {}}]', "do not end with <|/tool_call|>"),
        ("phi4_mini", "<|tool_call|>now()<|/tool_call|>", "Expecting value"),
        (
            "phi4_mini",
            '<|tool_call|>[{"name": "now", "arguments": }]<|/tool_call|>',
            "Expecting value at character 44",
        ),
        ("phi4_mini", '<|tool_call|>[{"name": "now"}]<|/tool_call|>', 'needs "arguments"'),
        ("mistral", "[TOOL_CALLS]search[ARGS]{", "Expecting property name"),
        ("mistral", "[TOOL_CALLS]search", "Expecting value at character 13"),
        ("mistral", "[TOOL_CALLS]search[ARGS]{query: 1}", "double quotes at character 26"),
        ("pythonic", "```tool_code\nnow()", "do not end with ```"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(form: str, text: str, fault: str) -> None:
    (call,) = parse(form, text).calls
    assert call.status == MALFORMED and fault in call.detail, call.detail


def test_one_bad_call_of_a_list_loses_only_itself() -> None:
    text = '<|tool_call|>[{"name": "now", "arguments": 1}, {"name": "now", "arguments": {}}]<|/tool_call|>'
    assert [call.status for call in parse("phi4_mini", text).calls] == [MALFORMED, OK]
    text = (
        '<|tool_call|>[{"name": "now", "arguments": {}}, {]<|/tool_call|><|tool_call|>{"name": "now", "arguments": {}}'
    )
    assert [call.status for call in parse("phi4_mini", f"{text}<|/tool_call|>").calls] == [OK, MALFORMED, OK]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("gemma4", '<|tool_call>call:f{flag:true,none:null,numbers:[1,-2.5e3,<|"|>x<|"|>],'
         'table:{<|"|>a<|"|>:{b:null}},text:<|"|>5, {a}<|"|>}<tool_call|>'),
        ("gemma4", '<|tool_call>call:f{ flag: true, none: null, numbers: [ 1, -2.5e3, <|"|>x<|"|> ],'
         'table: { <|"|>a<|"|> : { b: null } }, text: <|"|>5, {a}<|"|> } <tool_call|>'),
        ("glm", "<tool_call>f" + "".join(
            f"<arg_key>{key}</arg_key><arg_value>{value if isinstance(value, str) else json.dumps(value)}</arg_value>"
            for key, value in VALUES.items()) + "</tool_call>"),
        ("phi4_mini", f'<|tool_call|>{{"name": "f", "arguments": {json.dumps(VALUES)}}}<|/tool_call|>'),
        ("mistral", f"[TOOL_CALLS]f[ARGS]{json.dumps(VALUES)}"),
        ("harmony", f"<|channel|>commentary to=functions.f<|message|>{json.dumps(VALUES)}"),
    ],
)  # fmt: skip
def test_values_of_all_types_are_read(form: str, text: str) -> None:
    (call,) = parse(form, text, [TYPED]).calls
    values = json.loads(call.arguments_json)
    expected = VALUES | ({"none": "null"} if form == "glm" else {})  # A text fits a parameter of any type.
    assert (call.status, values) == (OK, expected), call.detail


def test_a_message_of_gpt_oss_to_another_recipient_is_a_call_of_an_unknown_tool() -> None:
    turn = parse("harmony", "<|channel|>commentary to=browser.open<|message|>{}<|call|>")
    assert brief(turn) == [("browser.open", "{}", UNKNOWN_TOOL)]
    turn = parse("harmony", "<|channel|>commentary to=functions.search<|message|>{}")
    assert brief(turn) == [("search", "{}", BAD_ARGUMENTS)]


def test_a_result_that_the_policy_invents_is_no_call() -> None:
    text = "<|start|>functions.now to=assistant<|channel|>commentary<|message|>{}<|end|>"
    assert parse("harmony", f"<|channel|>final<|message|>4<|end|>{text}").calls == ()
