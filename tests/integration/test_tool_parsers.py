"""Our parsers of tool calls against vLLM's, which say nothing of what is wrong with a call."""

import json
from typing import Any

import pytest

from shoal.conversation import ToolCallStatus
from shoal.episodes.tool_calls import make_parser
from tests.support.tiny_model import make_tokenizer
from tests.unit.shoal.episodes.tool_calls.examples import TOOLS

pytestmark = pytest.mark.integration

Calls = list[tuple[str, Any]]


def json_call(name: str, arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def xml_call(name: str, **parameters: str) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


K2 = {"query": "K2"}
NAMES = {"hermes": "hermes", "qwen3_xml": "qwen3_xml", "pythonic": "pythonic", "olmo3": "pythonic"}
"""Parsers of vLLM that need none of their special tokens, and ours."""

SAME = [
    ("hermes", "It is four."),
    ("hermes", json_call("search", K2)),
    ("hermes", f"I look. {json_call('search', K2)}\n{json_call('add', {'a': 1, 'b': -2.5})}"),
    ("hermes", json_call("find", {"x": [1, {"y": None}], "z": "ä\n"})),
    ("qwen3_xml", "It is four."),
    ("qwen3_xml", xml_call("search", query="K2")),
    ("qwen3_xml", xml_call("search", query="two\nlines", limit="3")),
    ("qwen3_xml", f"{xml_call('add', a='1', b='2.5')}\n{xml_call('now')}"),
    ("pythonic", "It is four."),
    ("pythonic", '[search(query="K2"), add(a=1, b=-2)]'),
    ("pythonic", "[find(x=[1, {'y': 'z'}], t=True, n=None)]"),
    ("olmo3", '<function_calls>search(query="K2")</function_calls>'),
    ("olmo3", '<function_calls>search(query="K2")\nadd(a=1, b=2)</function_calls>'),
    ("olmo3", "<function_calls>find(x=true, y=null)</function_calls>"),
]
"""Well-formed texts: the same calls."""

OTHER: list[tuple[str, str, Calls, Calls, str]] = [
    ("hermes", f"<tool_call>{{bad</tool_call>{json_call('search', K2)}",
     [("search", K2)], [], "one bad call of several loses only itself"),
    ("hermes", json_call("search", json.dumps(K2)),
     [("search", K2)], [("search", json.dumps(K2))], "arguments that are a text of JSON are parsed"),
    ("hermes", '<tool_call>{"name": "search", "arguments": {"query": "K2"}}',
     [], [("search", K2)], "a call that is not closed is malformed"),
    ("hermes", json_call("search", {"query": "a </tool_call> b"}),
     [("search", {"query": "a </tool_call> b"})], [], "arguments may contain the tags"),
    ("hermes", f"<think>{json_call('now', {})}</think>{json_call('search', K2)}",
     [("search", K2)], [("now", {}), ("search", K2)], "thoughts have no calls"),
    ("pythonic", '[search(query="K2"), now("x")]',
     [("search", K2)], [("search", K2), ("now", {})], "an argument without a name is not dropped in silence"),
    ("pythonic", "[search(query='K2'), now(x=1j)]",
     [("search", K2)], [], "one bad call of several loses only itself"),
    ("olmo3", "<function_calls>search(query='K2')\nnow(</function_calls>",
     [("search", K2)], [], "one bad call of several loses only itself"),
    ("olmo3", 'search(query="K2")',
     [], [("search", K2)], "without its tags nothing is a call of Olmo 3"),
    ("olmo3", 'I look. <function_calls>search(query="""two\nlines""")</function_calls>',
     [("search", {"query": "two\nlines"})], [("search", {"query": "two, lines"})], "a text may have several lines"),
]  # fmt: skip
"""Texts on which we differ: our calls, vLLM's, and our reason."""


def ours(form: str, text: str) -> Calls:
    calls = make_parser(NAMES[form])(text, TOOLS, 1).calls
    return [(call.name, json.loads(call.arguments_json)) for call in calls if call.status != ToolCallStatus.MALFORMED]


def theirs(form: str, text: str) -> Calls:
    pytest.importorskip("vllm")
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    tools = [{"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}} for tool in TOOLS]
    request = ChatCompletionRequest(model="m", messages=[], tools=tools)
    parser = ToolParserManager.get_tool_parser(form)(make_tokenizer(), request.tools)
    found = parser.extract_tool_calls(text, request=request)
    return [(call.function.name, json.loads(call.function.arguments)) for call in found.tool_calls]


@pytest.mark.parametrize(
    "text",
    [
        "It is four.",
        '<|tool_call>call:search{query:<|"|>K2<|"|>}<tool_call|>',
        'I look.<|tool_call>call:find{text:<|"|>5, {a}<|"|>}<tool_call|><|tool_call>call:now{}<tool_call|>',
    ],
)
def test_calls_of_gemma_4_are_read_as_vllm_reads_them(text: str) -> None:
    gemma4 = pytest.importorskip("vllm.tool_parsers.gemma4_utils")
    calls = make_parser("gemma4")(text, TOOLS, 1).calls
    assert [(call.name, json.loads(call.arguments_json)) for call in calls] == [
        (call["name"], call["arguments"]) for call in gemma4.parse_tool_calls(text, strict=True)
    ]


@pytest.mark.parametrize(("form", "text"), SAME)
def test_well_formed_calls_are_read_as_vllm_reads_them(form: str, text: str) -> None:
    assert ours(form, text) == theirs(form, text)


@pytest.mark.parametrize(("form", "text", "our_calls", "their_calls", "reason"), OTHER)
def test_where_we_differ_from_vllm_is_listed(
    form: str, text: str, our_calls: Calls, their_calls: Calls, reason: str
) -> None:
    assert ours(form, text) == our_calls, reason
    assert theirs(form, text) == their_calls, f"vLLM has changed: {reason}"
