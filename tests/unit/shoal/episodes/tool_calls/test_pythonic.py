import json

import pytest

from tests.unit.shoal.episodes.tool_calls.examples import BAD_ARGUMENTS, MALFORMED, OK, UNKNOWN_TOOL, brief, parse


@pytest.mark.parametrize(
    "text",
    [
        '[search(query="K2"), now()]',
        '\n[ search( query = "K2" ) ,\n now() ,]\n',
        '<function_calls>search(query="K2")\nnow()</function_calls>',
        '<function_calls>\nsearch(query="K2")\n\nnow()\n</function_calls>',
        '<function_calls>search(query="K2")</function_calls> <function_calls>now()</function_calls>',
        '<think>[f(x=1)]</think>[search(query="K2"), now()]',
    ],
)
def test_calls_are_a_list_or_lines_between_tags(text: str) -> None:
    turn = parse("pythonic", text)
    assert brief(turn) == [("search", '{"query": "K2"}', OK), ("now", "{}", OK)], turn
    assert turn.content in ("", "<think>[f(x=1)]</think>")


def test_arguments_are_literals_of_python_or_json() -> None:
    source = "{'a': [1, -2.5, (True, false)], 'b': null, 'c': \"\"\"x(\n')\"\"\", 'd': 'it\\'s'}"
    turn = parse("pythonic", f"<function_calls>f(x={source}, y='ä')</function_calls>")
    (name, arguments, status), *rest = brief(turn)
    assert (name, status, rest) == ("f", UNKNOWN_TOOL, [])
    value = {"a": [1, -2.5, [True, False]], "b": None, "c": "x(\n')", "d": "it's"}
    assert json.loads(arguments) == {"x": value, "y": "ä"}


def test_content_around_the_tags_stays() -> None:
    assert parse("pythonic", "I look. <function_calls>now()</function_calls> Then").content == "I look.  Then"


def test_a_call_inside_print_is_a_call() -> None:
    turn = parse("pythonic", '```tool_code\nprint(search(query="K2"))\nprint( web.find(x=1) )\nprint(now())\n```')
    assert brief(turn) == [
        ("search", '{"query": "K2"}', OK),
        ("web.find", '{"x": 1}', UNKNOWN_TOOL),
        ("now", "{}", OK),
    ], turn
    for text in ("print('K2')", "print(now(), now())", "print(search('K2'))", "print(now(), end='')"):
        (call,) = parse("pythonic", f"```tool_code\n{text}\n```").calls
        assert call.status == MALFORMED and "given by name" in call.detail, (text, call)
    turn = parse("pythonic", "```tool_code\nprint(search(query=\nprint(now())\n```")
    assert [call.status for call in turn.calls] == [MALFORMED, OK], turn


def test_a_longer_word_opens_no_block() -> None:
    assert parse("pythonic", "```tool_code_x\nnow()\n```").calls == ()
    assert parse("pythonic", "```tool_codes\nnow()\n```").calls == ()


@pytest.mark.parametrize("text", ["[1, 2]", "[K2](http://x)", "see [search(query='K2')]", "search(query='K2')", "[]"])
def test_a_text_that_is_no_list_of_calls_is_content(text: str) -> None:
    assert parse("pythonic", text).calls == ()


@pytest.mark.parametrize(
    ("call", "detail"),
    [
        ("search('K2')", "given by name"),
        ("search(**{'query': 'K2'})", "given by name"),
        ("search(query=open('/etc/passwd').read())", "must be literals"),
        ("search(query=f'{now}')", "must be literals"),
        ("search(query=b'x')", "must be literals"),
        ("search(query={1: 2})", "must be literals"),
        ("search(query={**{}})", "must be literals"),
        ("search(query=1j)", "must be literals"),
        ("search(query=1e999)", "not JSON compliant"),
        ("search(query='\\ud800')", "not valid Unicode"),
        ("search(query=" + "[" * 70 + "]" * 70 + ")", "nested deeper than 64"),
        ("search(query=" + "-" * 3000 + "1)", ""),
        ("search(query=" + "(" * 3000 + ")" * 3000 + ")", ""),
        ("search(query='a' 5)", "line 1: "),
        ("search(query='K2').pop()", "behind it stands '.pop()"),
        ("search(query='K2'", "it has no end"),
        ("search(query='K2)", "it has no end"),
        ("search(query='K2', query='K3')", ""),
        ("search[1]", "it is not NAME(PARAMETER=VALUE)"),
        ("search(query=" + "9" * 5000 + ")", ""),
    ],
)
@pytest.mark.parametrize("form", ["<function_calls>{}\nnow()</function_calls>", "[now(), {}]"])
def test_a_malformed_call_says_what_is_wrong_and_loses_only_itself(form: str, call: str, detail: str) -> None:
    turn = parse("pythonic", form.format(call))
    bad = [found for found in turn.calls if found.status == MALFORMED]
    assert len(bad) == 1 and detail in bad[0].detail, turn.calls
    assert [found.name for found in turn.calls if found.status == OK] == ["now"], turn.calls


def test_calls_that_are_cut_off_are_malformed() -> None:
    for text in ("<function_calls>now()\nsearch(query='K", "[now(), search(query='K", "[now(), search(query='K2')"):
        turn = parse("pythonic", text)
        assert [found.status for found in turn.calls] == [OK, MALFORMED], turn.calls
    (empty,) = parse("pythonic", "<function_calls> </function_calls>").calls
    assert empty.status == MALFORMED and "there is no call" in empty.detail


def test_the_lines_of_an_argument_are_no_calls() -> None:
    text = '<function_calls>search(query="""a\nnow()\nb""")</function_calls>'
    assert brief(parse("pythonic", text)) == [("search", '{"query": "a\\nnow()\\nb"}', OK)]


def test_dotted_names_are_names() -> None:
    assert brief(parse("pythonic", "[web.find(x=1)]")) == [("web.find", '{"x": 1}', UNKNOWN_TOOL)]
    assert brief(parse("pythonic", "[search(query=1)]"))[0][2] == BAD_ARGUMENTS
