"""The time of the parsers is linear, whatever the text."""

import itertools
import time
from collections.abc import Iterator

import pytest

from shoal.episodes.tool_calls import PARSERS, make_parser
from tests.unit.shoal.episodes.tool_calls.examples import TOOLS

NUM = 20_000
TEXTS = {
    "glm": "<tool_call>search" + "\n" * NUM,
    "mistral": "[TOOL_CALLS]search" + "\n" * NUM,
    "mistral-id": "[TOOL_CALLS]search[CALL_ID]" + "\n" * 1000,
    "pythonic": "```tool_code\nsearch(query=1" + "\n" * NUM + "```",
    "pythonic-thoughts": "x <think></think>" * 3000 + "```tool_code",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_call_that_ends_in_white_space_is_read_at_once(name: str) -> None:
    begun = time.process_time()
    make_parser(name.partition("-")[0])(TEXTS[name], (), 1)
    took = time.process_time() - begun
    assert took < 0.2, f"{name}: {took:.2f} s for {len(TEXTS[name])} characters"


HOSTILE = [
    "<tool_call>", "<tool_call>{", '<tool_call>{"', '<tool_call>{"a":', "<tool_call>[", '<tool_call>"\\',
    "</tool_call>", "<search>", "<search><now>", "<think>", "</think>", "<tool_call><function=search>", "<function=f>",
    "<parameter=a>", "<tool_call><function=search><parameter=query>", "<function_calls>", "search(",
    "search(query=", "[", "(", "{", '{"name":', '{"name": "search", "parameters": {"query": "', "<|python_tag|>",
    "<|python_tag|>{", '"', "'", '"""', '\\"', "\\'", "\n", " ", "search(query='", "-", "a.", "\nsearch(", ",search(",
    "<function_calls>search(query=1\n",
    '{"name": "add", "parameters": {}}', "1,", "[search(query=[", "search(query=[1,", "<tool_call>\n", "{}; ",
    "<|tool_call>", '<|tool_call>call:f{a:<|"|>', "<|tool_call>call:f{a:[", "<|tool_call>call:f{a:{", "[{a:", '<|"|>',
    "<tool_call>f<arg_key>a</arg_key><arg_value>", "<arg_key>a</arg_key>", "<|tool_call|>[", "<|tool_call|>[{},", "{},",
    "<|tool_call|>{}", "[TOOL_CALLS]", "[TOOL_CALLS][{}]", "[TOOL_CALLS]f[ARGS]", "[CALL_ID]", "```tool_code\nf(",
    "<|start|>assistant", "<|start|>assistant to=functions.f<|message|>", "<|message|>{", " to=f ", "<|end|>",
    "<call_tool ", '<call_tool name="', '<call_tool name="search">', '<call_tool name="now" a="', ' a="" ', "</call",
]  # fmt: skip


OPENINGS = {
    "call_tool": ["<call_tool", '<call_tool name="search"', '<call_tool name="search">', '<call_tool name="search" a'],
    "gemma4": ["<|tool_call>", "<|tool_call>call:search", "<|tool_call>call:search{", "<|tool_call>call:search{query",
               "<|tool_call>call:search{query:", '<|tool_call>call:search{query:<|"|>', "<|tool_call>call:now{}"],
    "glm": ["<tool_call>", "<tool_call>search", "<tool_call>search<arg_key>query</arg_key>",
            "<tool_call>search<arg_key>query</arg_key><arg_value>K2</arg_value>"],
    "harmony": ["<|start|>assistant", "<|start|>assistant to=search", "<|start|>assistant to=search<|message|>",
                "<|start|>assistant to=search<|message|>{}"],
    "hermes": ["<tool_call>", "<tool_call>{", '<tool_call>{"name": "now", "arguments": {}}'],
    "llama3_json": ["<|python_tag|>", "<|python_tag|>{", "{", '{"name"', '{"name":',
                    '{"name": "now", "parameters": {}}'],
    "mistral": ["[TOOL_CALLS]", "[TOOL_CALLS]search", "[TOOL_CALLS]search[CALL_ID]b", "[TOOL_CALLS]search[ARGS]",
                "[TOOL_CALLS]search[ARGS]{", "[TOOL_CALLS][", "[TOOL_CALLS][{}"],
    "phi4_mini": ["<|tool_call|>", "<|tool_call|>[", "<|tool_call|>[{}", "<|tool_call|>[{}]", "<|tool_call|>{}"],
    "pythonic": ["[", "[search", "[search(", "[search(query=1", "[search(query=1)", "```tool_code",
                 "```tool_code\nsearch", "```tool_code\nsearch(", "```tool_code\nsearch(query=1",
                 "```tool_code\nsearch(query=1)", "```tool_code\nprint(", "<function_calls>search(query=1"],
    "qwen3_xml": ["<tool_call>", "<tool_call><function=", "<tool_call><function=search>",
                  "<tool_call><function=search><parameter=query>", "<tool_call><function=search></function>",
                  "<tool_call><function=search><parameter=query>K2</parameter>"],
    "tag": ["<search>", "<search"],
}  # fmt: skip
"""The beginnings of a call, at each place where white space or text may follow."""
CLOSINGS = ("", "x", "```", "]", "<tool_call>")


def hostile_texts(form: str) -> Iterator[str]:
    """Yields texts of 300 kilobytes: repeated parts, also behind the beginnings of a call; thoughts before a call;
    and calls with a long value or with many parameters."""
    yield from (unit * (300_000 // len(unit)) for unit in HOSTILE)
    for opening in OPENINGS[form]:
        yield from (opening + space * 300_000 + closing for space in "\n \t" for closing in CLOSINGS)
        yield from (opening + "a" * 300_000 + closing for closing in CLOSINGS)
        yield "x <think></think>" * 20_000 + opening
        yield "x <think></think>" * 20_000 + opening + "\n" * 300_000
    for parameter, unit in itertools.product(("query", "limit"), ("1,", "[", "(", "-", '"', "\n")):
        value = unit * (300_000 // len(unit))
        yield f"<tool_call>search<arg_key>{parameter}</arg_key><arg_value>{value}</arg_value></tool_call>"
        yield f"<tool_call><function=search><parameter={parameter}>{value}</parameter></function></tool_call>"
    yield "<tool_call><function=search>" + "<parameter=query>K2</parameter>" * 10_000
    yield "<tool_call>search" + "".join(f"<arg_key>{i}</arg_key><arg_value>1</arg_value>" for i in range(8000))


@pytest.mark.parametrize("form", OPENINGS)
def test_300_kilobytes_of_anything_are_parsed_in_three_seconds(form: str) -> None:
    """Linear time is 0.03 s each, and 0.3 s for literals of Python; a quadratic parser takes a minute. The time of
    "regex" is its pattern's, up to a limit."""
    assert {*OPENINGS, "regex"} == {*PARSERS}
    parse_text = make_parser(form)
    for text in hostile_texts(form):
        begun = time.process_time()
        parse_text(text, TOOLS, 1)
        took = time.process_time() - begun
        assert took < 3, f"{form}: {len(text)} characters, {text[:60]!r} to {text[-30:]!r}, take {took:.2f} s"
