import pytest

from tests.unit.shoal.episodes.tool_calls.examples import MALFORMED, OK, brief, parse

CALL = '{"name": "search", "parameters": {"query": "K2"}}'
FOUND = ("search", '{"query": "K2"}', OK)


@pytest.mark.parametrize(
    "text",
    [CALL, f"<|python_tag|>{CALL}", CALL.replace("parameters", "arguments"), f"\n{CALL};",
     '{"type": "function", "name": "search", "parameters": {"query": "K2"}}',
     '{"name": "search", "parameters": "{\\"query\\": \\"K2\\"}"}'],
)  # fmt: skip
def test_a_call_is_json_with_a_name_and_parameters(text: str) -> None:
    assert brief(parse("llama3_json", text)) == [FOUND]
    assert parse("llama3_json", text).content == ""


def test_several_calls_are_separated_by_semicolons() -> None:
    turn = parse("llama3_json", f'<|python_tag|>{CALL}; {{"name": "now", "parameters": {{}}}}')
    assert brief(turn) == [FOUND, ("now", "{}", OK)]


@pytest.mark.parametrize("text", ['{"answer": 4}', '{"name": "K2", "height": 8611}', "{x} is a set", "f{1}"])
def test_other_json_is_content(text: str) -> None:
    turn = parse("llama3_json", text)
    assert turn.calls == () and turn.content == text


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ('{"name": "search", "parameters": {"query": "K2"}', "Expecting ',' delimiter"),
        ('<|python_tag|>{"name": "search"}', 'a call needs "parameters"'),
        ('{"name": 5, "parameters": {}}', 'a call needs a "name"'),
        ('<|python_tag|>print("K2")', "must come the JSON of a call"),
    ],
)
def test_a_malformed_call_says_what_is_wrong_and_loses_only_itself(text: str, detail: str) -> None:
    calls = parse("llama3_json", f"{text}; {CALL}").calls
    assert calls[0].status == MALFORMED and detail in calls[0].detail, calls
    assert (calls[-1].name, calls[-1].status) == ("search", OK), calls


def test_calls_behind_thoughts_count_and_those_inside_do_not() -> None:
    assert brief(parse("llama3_json", f"<think>{CALL}</think>{CALL}")) == [FOUND]
