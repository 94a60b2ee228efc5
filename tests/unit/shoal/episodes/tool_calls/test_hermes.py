import json

import pytest

from tests.unit.shoal.episodes.tool_calls.examples import MALFORMED, OK, brief, parse


def call(name: str, arguments: object) -> str:
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"


def test_calls_are_found_between_their_tags_and_the_content_is_without_them() -> None:
    text = f"I look.\n{call('search', {'query': 'K2'})}\n{call('add', {'a': 1, 'b': 2})} Done."
    turn = parse("hermes", text)
    assert brief(turn) == [("search", '{"query": "K2"}', OK), ("add", '{"a": 1, "b": 2}', OK)]
    assert [each.id for each in turn.calls] == ["call00101", "call00102"], "nine letters and digits, as Mistral demands"
    assert turn.calls[0].raw == call("search", {"query": "K2"})
    assert turn.content == "I look.\n\n Done."


def test_arguments_that_are_a_text_of_json_are_parsed() -> None:
    assert brief(parse("hermes", call("search", '{"query": "K2"}'))) == [("search", '{"query": "K2"}', OK)]


def test_a_bad_call_loses_only_itself() -> None:
    turn = parse("hermes", f"<tool_call>{{bad</tool_call>{call('now', {})}<tool_call>{{<tool_call>{call('now', {})}")
    assert [each.status for each in turn.calls] == [MALFORMED, OK, MALFORMED, MALFORMED, OK], turn.calls
    assert "".join(each.raw for each in turn.calls) and turn.content == ""


@pytest.mark.parametrize(
    ("inside", "detail"),
    [
        ('{"name": "now", "arguments": {}', "Expecting ',' delimiter at character 45"),
        ('{"arguments": {}}', 'a call needs a "name"'),
        ('{"name": "now"}', 'a call needs "arguments"'),
        ('{"name": 5, "arguments": {}}', 'a call needs a "name"'),
        ('{"name": "now", "arguments": [1]}', "the arguments must be a JSON object"),
        ('{"name": "now", "arguments": "x=1"}', "the arguments are a text that is not JSON"),
        ('["now"]', "a call must be a JSON object"),
        ('{"name": "now", "arguments": {"a": NaN}}', "NaN is not JSON"),
        ('{"name": "now", "arguments": {"a": 1e999}}', "Out of range float values"),
        ('{"name": "now", "arguments": {"a": "\\ud800"}}', "not valid Unicode"),
        ('{"name": "now", "arguments": {"a": ' + "[" * 80 + "]" * 80 + "}}", "nested deeper than 64"),
        ("[" * 100_000, "nested too deeply"),
        ('{"name": "now", "arguments": {}} and', "does not end with </tool_call>"),
        ("", "Expecting value at character 14"),
    ],
)
def test_a_malformed_call_says_what_is_wrong(inside: str, detail: str) -> None:
    (found,) = parse("hermes", f"<tool_call>\n{inside}\n</tool_call>").calls
    assert found.status == MALFORMED and detail in found.detail, found
    assert found.raw.startswith("<tool_call>") and found.raw.endswith("</tool_call>"), found.raw


def test_a_call_that_is_not_closed_is_malformed() -> None:
    (found,) = parse("hermes", '<tool_call>{"name": "now", "arguments": {}}').calls
    assert found.status == MALFORMED and "</tool_call>" in found.detail


def test_arguments_may_contain_the_tags() -> None:
    query = "what does </tool_call><tool_call> mean"
    assert brief(parse("hermes", call("search", {"query": query}))) == [("search", json.dumps({"query": query}), OK)]


def test_what_a_thought_says_about_calls_is_no_call() -> None:
    text = f"I could {call('now', {})}.</think>It is {call('search', {'query': 'K2'})}"
    for beginning in ("<think>", ""):
        turn = parse("hermes", beginning + text)
        assert [each.name for each in turn.calls] == ["search"]
        assert "</think>It is" in turn.content
    assert parse("hermes", "\n<think>" + call("now", {})).calls == (), "the thought was cut off"
