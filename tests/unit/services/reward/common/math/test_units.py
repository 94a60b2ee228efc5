"""Tests of values apart from their units."""

from fractions import Fraction

import pytest

from services.reward.common.math.notation import in_common_notation
from services.reward.common.math.units import are_other_units, quantity


@pytest.mark.parametrize(
    ("latex", "value"),
    [
        ("5\\text{ cm}^2", "5"),
        ("5\\;\\mathrm{m/s^2}", "5"),
        ("5\\frac{\\text{m}}{\\text{s}}", "5"),
        ("3 \\frac{1}{2} \\text{ hours}", "3 \\frac{1}{2}"),
        ("-\\$5", "-5"),
        ("\\text{Rs. }18", "18"),
        ("90^\\circ", "90"),
        ("5 red apples", "5"),
        ("12\\%", "12"),
        ("2xy", "2xy"),
        ("2t", "2t"),
        ("2 \\cos x", "2 \\cos x"),
        ("2\\mathrm{i}", "2\\mathrm{i}"),
        ("\\text{Monday}", "\\text{Monday}"),
        ("3\\text{ R }1", "3\\text{ R }1"),
        ("x<3 \\text{ and } x>1", "x<3 \\text{ and } x>1"),
    ],
)
def test_a_unit_is_no_part_of_the_value(latex: str, value: str) -> None:
    assert quantity(in_common_notation(latex)).value == value


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ("5\\text{ cm}", "5\\text{ m}", True),
        ("5\\text{ cm}^2", "5\\text{ cm}", True),
        ("5\\text{ square cm}", "5\\,\\mathrm{cm}^2", False),
        ("60\\text{ mph}", "60\\text{ miles per hour}", False),
        ("5\\text{ kilograms}", "5\\text{ kg}", False),
        ("\\$5", "5\\text{ cents}", True),
        ("\\$5", "5\\text{ dollars}", False),
        ("5\\text{ am}", "5\\text{ p.m.}", True),
        ("5\\text{ apples}", "5\\text{ oranges}", True),
        ("5\\text{ apples}", "5\\text{ red apples}", False),
        ("5\\text{ square units}", "5\\text{ cm}^2", False),
        ("5", "5\\text{ cm}", False),
    ],
)
def test_another_unit_is_another_answer_and_none_is_not(one: str, other: str, differ: bool) -> None:
    assert are_other_units(*(quantity(in_common_notation(latex)) for latex in (one, other))) is differ


@pytest.mark.parametrize(
    ("latex", "factor"),
    [
        ("2\\text{ million}", 10**6),
        ("3 dozen eggs", 12),
        ("\\$4\\text{ thousand}", 1000),
        ("5 hundred thousand", 10**5),
    ],
)
def test_words_of_size_multiply(latex: str, factor: int) -> None:
    assert quantity(in_common_notation(latex)).factor == Fraction(factor)


@pytest.mark.parametrize("latex", ["5\\text{ or more}", "5\\text{ at most}", "5 or less"])
def test_words_that_change_the_answer_are_no_unit(latex: str) -> None:
    assert not quantity(in_common_notation(latex)).is_number
