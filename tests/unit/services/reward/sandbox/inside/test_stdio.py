"""Tests of how a program's output is compared."""

import pytest

from services.reward.sandbox.inside.examiner import same_output


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        ("3.0", "3"), ("1.50 2", "1.5 2.0"), ("1  2", "1 2"), ("5.", "5"), (".5", "0.5"), ("-0", "0"), ("+5", "5"),
        ("1e3", "1000"), ("1.000000e+05", "100000"), ("0011 3.0", "0011 3"), ("007", "007"), ("a \n 3.0", "a\n3"),
        ("nan", "nan"), ("७", "७"),
    ],
)  # fmt: skip
def test_numbers_are_equal_by_value(got: str, wanted: str) -> None:
    assert same_output(got, wanted) and same_output(wanted, got)


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        ("0011", "11"), ("007", "7"), ("00", "0"), ("-01", "-1"), ("01.5", "1.5"), ("1_000", "1000"), ("७", "7"),
        ("３", "3"), ("1 007", "1 7"), ("NaN", "nan"), ("inf", "Infinity"), ("1e999", "inf"), ("0x3", "3"),
        ("1,000", "1000"),
        ("3.0000000001", "3"), ("x 3.0", "x 3"), ("1 2", "1"), ("--3", "3"), ("e3", "1000"), (".", "0"),
    ],
)  # fmt: skip
def test_digits_that_may_be_a_text_are_none(got: str, wanted: str) -> None:
    assert not same_output(got, wanted) and not same_output(wanted, got)
