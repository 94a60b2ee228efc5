"""Tests of the numbers that math-verify takes for equal, or would compute forever."""

import pytest
from sympy import Float, Integer, Pow, Rational, Symbol, factorial, sqrt

from services.reward.common.math_numbers import are_apart, bases, is_too_large


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12_8", ["8"]),
        ("12_{16} + 2A_{016}", ["16", "16"]),
        ("x_1", []),
        ("12", []),
        ("12_{10}", []),
        ("5_{" + 5000 * "1" + "}", [5000 * "1"]),
        ("\\log_2 8", []),
        ("3x_2", []),
    ],
)
def test_a_base_is_the_index_of_a_number(text: str, expected: list[str]) -> None:
    assert bases(text) == expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Float("4e-7"), Float("3e-7"), True),
        (Float("4e-7"), Rational(4, 10**7), False),
        (Float("1e-7"), Integer(0), True),
        (Float("0.0"), Integer(0), False),
        (Float("0.333333"), Rational(1, 3), False),
        (Float("0.5"), Float("0.6"), False),
        (Symbol("x"), Float("1e-7"), False),
    ],
)
def test_small_numbers_are_apart_if_their_digits_differ(one: object, other: object, expected: bool) -> None:
    assert are_apart(one, other, 6) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (Pow(9, Pow(9, 9, evaluate=False), evaluate=False), True),
        (Pow(9, -Pow(9, 9, evaluate=False), evaluate=False), True),
        (factorial(Integer(10) ** 8, evaluate=False), True),
        (Pow(2, 2024, evaluate=False), False),
        (factorial(1000, evaluate=False), False),
        (Pow(10, (sqrt(13) - 5) / 6, evaluate=False), False),
        (Symbol("x") ** Symbol("n"), False),
    ],
)
def test_a_number_of_more_than_a_million_digits_is_too_large(expression: object, expected: bool) -> None:
    assert is_too_large(expression) is expected
