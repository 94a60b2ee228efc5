"""Tests of numbers of computer algebra: equal, apart, too large."""

import pytest
from sympy import Float, I, Integer, Pow, Rational, Symbol, exp, factorial, pi, sqrt

from services.reward.common.math.values import are_apart, are_equal, is_too_large

X = Symbol("x")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (1 / factorial(50), 1 / factorial(49), False),
        (pi / factorial(50), pi / factorial(49), False),
        (sqrt(10**40 + 1), Integer(10) ** 20, False),
        (sqrt(2) + sqrt(3), sqrt(5 + 2 * sqrt(6)), True),
        (exp(-1000), exp(-1001), False),
        (2 * I, Integer(2), False),
        (Float("0.333333"), Rational(1, 3), True),
        (Float("0.333"), Rational(1, 3), False),
        (Float("1.41421356"), sqrt(2), True),
        (Float("0.5"), Rational(2**1199 + 1, 2**1200), False),
        (Float("2.0000004"), Integer(2), False),
        (Float("4e-7"), Float("3e-7"), False),
        (Float("4e-7"), Rational(4, 10**7), True),
    ],
)
def test_numbers_are_equal_as_a_whole(one: object, other: object, expected: bool) -> None:
    assert are_equal(one, other, 6) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((X + 1) ** 1000, Integer(5), True),
        (X / factorial(50), X / factorial(49), True),
        (X + Rational(1, 10**20), X, True),
        ((X + 1) ** 2, X**2 + 2 * X + 1, False),
        (X, Symbol("x", real=True), False),
    ],
)
def test_expressions_are_apart_where_a_value_tells(one: object, other: object, expected: bool) -> None:
    assert are_apart(one, other) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (Pow(9, Pow(9, 9, evaluate=False), evaluate=False), True),
        (Pow(9, -Pow(9, 9, evaluate=False), evaluate=False), True),
        (factorial(Integer(10) ** 8, evaluate=False), True),
        (exp(Integer(10) ** 10), True),
        (Pow(2, 2024, evaluate=False), False),
        (factorial(1000, evaluate=False), False),
        (Pow(10, (sqrt(13) - 5) / 6, evaluate=False), False),
        (Symbol("x") ** Symbol("n"), False),
    ],
)
def test_a_number_of_a_hundred_thousand_digits_is_too_large(expression: object, expected: bool) -> None:
    assert is_too_large(expression) is expected
