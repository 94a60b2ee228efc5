import pytest

from shoal.episodes.tool_calls import make_parser
from shoal.errors import InvalidArgument
from tests.unit.shoal.episodes.tool_calls.examples import ADD, MALFORMED, OK, SEARCH, TOOLS, UNKNOWN_TOOL, brief, parse

NAMED = r"CALL (?P<name>\w+): (?P<arguments>[^\n]*)"


def test_groups_of_a_pattern_are_name_and_arguments() -> None:
    turn = parse("regex", 'Well.\nCALL search: {"query": "K2"}\nCALL now: {}', pattern=NAMED)
    assert brief(turn) == [("search", '{"query": "K2"}', OK), ("now", "{}", OK)]
    assert turn.content == "Well."


def test_a_group_may_be_the_only_argument_of_the_only_tool() -> None:
    turn = parse("regex", "LOOKUP: K2\n", [SEARCH], pattern=r"LOOKUP: (?P<argument>[^\n]*)")
    assert brief(turn) == [("search", '{"query": "K2"}', OK)]
    turn = parse("regex", "LOOKUP: K2\n", [SEARCH, ADD], pattern=r"LOOKUP: (?P<argument>[^\n]*)")
    assert turn.calls[0].status == MALFORMED and "names no tool" in turn.calls[0].detail


def test_what_a_pattern_finds_and_cannot_be_read_is_malformed() -> None:
    bad, unknown, good = parse("regex", "CALL now: x\nCALL find: {}\nCALL now: {}", pattern=NAMED).calls
    assert bad.status == MALFORMED and "not JSON" in bad.detail
    assert (unknown.status, good.status) == (UNKNOWN_TOOL, OK)
    turn = parse("regex", "<find>x</find>", pattern=r"<(?P<name>\w+)>(?P<argument>.*?)</\1>")
    assert brief(turn) == [("find", "", UNKNOWN_TOOL)]


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [("(", "is no regular expression"), ("", "must have the group"), (r"(?P<name>\w+)", "must have the group"),
     (r"(?P<argument>x)(?P<arguments>y)", "not both")],
)  # fmt: skip
def test_a_pattern_that_cannot_be_used_is_refused(pattern: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        make_parser("regex", pattern)


def test_a_pattern_that_takes_too_long_makes_the_rest_a_malformed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.episodes.tool_calls.regex._TIMEOUT_S", 0.05)
    turn = parse("regex", "CALL now: {}\n" + "a" * 60 + "!", TOOLS, pattern=NAMED + r"|(?:a|aa)+(?=\W\W)")
    assert brief(turn)[0] == ("now", "{}", OK)
    assert turn.calls[-1].status == MALFORMED and "too long" in turn.calls[-1].detail, turn.calls
