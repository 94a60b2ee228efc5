"""Tests of exact values, and of the numbers that are not computed."""

from fractions import Fraction

import pytest

from services.reward.common.math.rational import TooLarge, rational_value


@pytest.mark.parametrize(
    ("latex", "value"),
    [
        ("\\frac{50!}{48!}", Fraction(2450)),
        ("\\frac12", Fraction(1, 2)),
        ("-2\\frac{1}{2}", Fraction(-5, 2)),
        ("-2^2", Fraction(-4)),
        ("2^3^2", Fraction(512)),
        ("10^{-20}\\cdot 10^{21}", Fraction(10)),
        ("8^{2/3}", Fraction(4)),
        ("\\sqrt[3]{-8}", Fraction(-2)),
        ("\\binom{5}{2}", Fraction(10)),
        ("6:8", Fraction(3, 4)),
        ("2(3)", Fraction(6)),
        (".5", Fraction(1, 2)),
    ],
)
def test_arithmetic_is_exact(latex: str, value: Fraction) -> None:
    found = rational_value(latex)
    assert found is not None and found.value == value


@pytest.mark.parametrize(
    "latex", ["", "x", "1 2 3", "5+", "1/0", "\\sqrt2", "(1,2)", "5'", "(" * 500 + "1", "3\\frac12!", "\\pi"]
)
def test_what_is_no_rational_number_has_no_value(latex: str) -> None:
    assert rational_value(latex) is None


@pytest.mark.parametrize(
    "latex", ["9^{9^{9^9}}", "(10^9)!", "\\binom{10^9}{5\\cdot 10^8}", "2^{-10^{10}}", "100000!", "((10!)!)!"]
)
def test_a_number_of_too_many_digits_is_not_computed(latex: str) -> None:
    with pytest.raises(TooLarge):
        rational_value(latex)


@pytest.mark.parametrize(
    ("latex", "num_decimals"), [("0.50", 2), ("5.", 0), ("1.5\\cdot 10^3", 1), ("1.25+0.1", 2), ("7", 0)]
)
def test_the_decimals_are_those_that_are_written(latex: str, num_decimals: int) -> None:
    found = rational_value(latex)
    assert found is not None and found.num_decimals == num_decimals
