"""What verifiers print becomes lines of the log."""

import logging

import pytest

from services.reward.pool.output import MARK, LineBudget, VerifierOutput


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_each_line_has_the_name_of_the_verifier_that_printed_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    output = VerifierOutput(LineBudget())
    whole = b"ImportError\n" + MARK + b"mine\none\n\ntwo, unfinished" + MARK + b"other\n\xff three\nlast words"
    for start in range(len(whole)):
        output.feed(whole[start : start + 1])
    assert logged(caplog) == [
        "a verifier process: ImportError",
        "mine: one",
        "mine: two, unfinished",
        "other: \ufffd three",
    ]
    output.end()
    assert logged(caplog)[-1] == "other: last words"


def test_a_line_without_end_is_cut_and_fills_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    output = VerifierOutput(LineBudget())
    for _ in range(100):
        output.feed(b"x" * 1000)
    assert all(len(line) < 2100 for line in logged(caplog)) and 30 < len(caplog.records) < 50


def test_a_verifier_that_prints_without_end_leaves_the_log_readable(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    output = VerifierOutput(LineBudget(lambda: now))
    output.feed(b"line\n" * 5000)
    assert len(caplog.records) == 1000
    now = 1.0
    output.feed(b"line\n")
    left_out, last = logged(caplog)[-2:]
    assert left_out.startswith("4000 lines ") and last == "a verifier process: line"
