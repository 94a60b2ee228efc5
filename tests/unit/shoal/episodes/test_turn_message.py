"""Messages of turns, with thoughts that the policy or the template begins."""

import numpy as np
import pytest

from shoal.conversation import ChatMessage, ToolDefinition
from shoal.episodes.suffix import TurnRenderer
from shoal.episodes.tool_calls import make_parser
from shoal.episodes.turn_message import opened_by, turn_message
from tests.support import chat_templates as families
from tests.support.chat_templates import tokenizer_with

TOOLS = [ToolDefinition("search", "Finds pages.", {"type": "object", "properties": {"query": {"type": "string"}}})]
QUESTION = ChatMessage("user", "Which is the tallest?")
HERMES = '<tool_call>{"name": "search", "arguments": {"query": "K2"}}</tool_call>'
FORMS = {
    "hermes": HERMES,
    "qwen3_xml": "<tool_call><function=search><parameter=query>K2</parameter></function></tool_call>",
    "pythonic": '[search(query="K2")]',
    "llama3_json": '{"name": "search", "parameters": {"query": "K2"}}',
    "regex": "CALL search: K2",
}
PATTERN = "CALL (?P<name>[a-z]+): (?P<argument>[^\n]*)"


def message_of(template: str, form: str, text: str) -> ChatMessage:
    renderer = TurnRenderer(tokenizer_with(template), TOOLS)
    parse = make_parser(form, PATTERN if form == "regex" else "")
    before = np.array(renderer.opening([QUESTION], []), np.int32)
    sampled = np.array([*renderer.encode(text), renderer.ends_of_turn[0]], np.int32)
    return turn_message(renderer, parse, TOOLS, 1, before=before, sampled=sampled)


@pytest.mark.parametrize("template", [families.QWEN_THINKING, families.DEEPSEEK_R1], ids=["qwen_thinking", "r1"])
@pytest.mark.parametrize("form", FORMS)
def test_a_call_in_a_thought_that_the_template_opened_is_none(template: str, form: str) -> None:
    thought = f"I could write\n{FORMS[form]}\nand so on"
    unfinished = message_of(template, form, thought)
    assert not unfinished.tool_calls, "the thought was cut off: nothing in it is a call"
    assert unfinished.content == thought, "the message has what was sampled"
    finished = message_of(template, form, f"{thought}</think>\n{FORMS[form]}")
    (call,) = finished.tool_calls
    assert call.name == "search" and call.raw.strip() == FORMS[form]
    assert finished.content == f"{thought}</think>", "the call behind the thought alone is taken out"


@pytest.mark.parametrize(
    ("template", "mark"),
    [(families.QWEN_THINKING, "<think>"), (families.DEEPSEEK_R1, "<think>"), (families.HERMES, "")],
    ids=["qwen_thinking", "r1", "hermes"],
)
def test_the_thought_in_which_a_template_begins_a_turn_is_known(template: str, mark: str) -> None:
    renderer = TurnRenderer(tokenizer_with(template), TOOLS)
    assert opened_by(renderer, np.array(renderer.opening([QUESTION], []), np.int32)) == mark


def test_without_a_thought_of_the_template_a_call_is_one() -> None:
    assert len(message_of(families.HERMES, "hermes", f"So: {HERMES}").tool_calls) == 1
    assert not message_of(families.HERMES, "hermes", f"<think>So: {HERMES}").tool_calls


def test_tags_are_calls_in_thoughts_too() -> None:
    message = message_of(families.QWEN_THINKING, "tag", "I look.\n<search>K2</search>")
    assert [call.arguments_json for call in message.tool_calls] == ['{"query": "K2"}']
    assert message.content == "I look."


def test_a_turn_has_no_calls_where_no_result_can_follow_it() -> None:
    renderer = TurnRenderer(tokenizer_with(families.HERMES), TOOLS, inline_results="<output>{result}</output>")
    before = np.array(renderer.opening([QUESTION], []), np.int32)
    text = "I look.\n<search>K2</search>"
    stopped, ended = renderer.encode(text), [*renderer.encode(f"{text} and <search>K3"), renderer.ends_of_turn[0]]
    parse = make_parser("tag")
    message = turn_message(renderer, parse, TOOLS, 1, before=before, sampled=np.array(stopped, np.int32))
    assert [call.arguments_json for call in message.tool_calls] == ['{"query": "K2"}']
    message = turn_message(renderer, parse, TOOLS, 1, before=before, sampled=np.array(ended, np.int32))
    assert message == ChatMessage("assistant", f"{text} and <search>K3")
