"""Numbers of computer algebra: comparing two numbers, and finding numbers that are too large to compute.

math-verify sets small factors of a difference to 0. This module compares rational numbers exactly, and other numbers by
their whole value, to more digits than could agree by chance.
"""

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from services.reward.common.math import rational

_MAX_EXPONENT_DIGITS = 300.0
_SMALL = Fraction(1, 1000)
_DIGITS_PER_BIT = math.log10(2)
_PRECISION = 60
"""Digits to which an irrational expression is evaluated, in addition to the digits of its numbers."""
_MAX_PRECISION = 1000
_AGREEING = 40
"""Digits, besides their numbers' digits, in which two irrational expressions agree only if they are equal."""
_POINT = tuple(Fraction(number, 1000) for number in (1371, 2193, 1637, 2741, 3119, 1913, 2357, 1489))
"""Values of the letters for comparing expressions. They are above 1, so that roots and logarithms are real."""


def are_equal(one: Any, other: Any, num_digits: int) -> bool | None:
    """Returns whether two numbers of sympy are equal, or one is the other after rounding (see `equal_or_rounded`).

    Returns None if their values do not decide it.
    """
    exact = [exact_value(number) for number in (one, other)]
    decimals = [num_decimals(number) for number in (one, other)]
    if exact[0] is not None and exact[1] is not None:
        return equal_or_rounded(
            rational.Rational(exact[0], decimals[0]), rational.Rational(exact[1], decimals[1]), num_digits
        )
    extra = min(int(_num_digits(one) + _num_digits(other)) * 2, _MAX_PRECISION)
    one_value, other_value = _approximation(one, _PRECISION + extra), _approximation(other, _PRECISION + extra)
    if one_value is None or other_value is None:
        return None
    pairs = list(zip(one_value, other_value, strict=True))
    size = max(abs(part) for pair in pairs for part in pair)
    if all(abs(a - b) <= size / 10 ** (_AGREEING + extra) for a, b in pairs):
        return True if size > 0 else None
    return max(decimals) >= max(num_digits, 1) and all(_agree(a, b, num_digits) for a, b in pairs)


def equal_or_rounded(one: rational.Rational, other: rational.Rational, num_digits: int) -> bool:
    """Returns whether two rational numbers are equal, or one is a decimal fraction of at least `num_digits` decimals
    to which the other is rounded: to `num_digits` decimals, and below 0.001 to as many significant digits."""
    if one.value == other.value:
        return True
    if max(one.num_decimals, other.num_decimals) < max(num_digits, 1):
        return False
    if any(number.value.denominator == 1 and not number.num_decimals for number in (one, other)):
        return False  # A whole number is not the rounding of another.
    return _agree(one.value, other.value, num_digits)


def are_apart(one: Any, other: Any) -> bool:
    """Returns whether two expressions with letters differ at a point. Simplifying their difference takes seconds."""
    from sympy import Rational

    letters = sorted({str(letter) for each in (one, other) for letter in each.free_symbols})
    if len(letters) > len(_POINT):
        return False
    point = {letter: Rational(*value.as_integer_ratio()) for letter, value in zip(letters, _POINT, strict=False)}
    parts = []
    for each in (one, other):
        try:
            values_of = {letter: point[str(letter)] for letter in each.free_symbols}
            parts.append(_parts(with_exact_decimals(each).evalf(_PRECISION, subs=values_of), _PRECISION))
        except (TypeError, ValueError, AttributeError, ArithmeticError, NotImplementedError):
            return False
    if parts[0] is None or parts[1] is None:
        return False
    pairs = list(zip(parts[0], parts[1], strict=True))
    size = max(abs(part) for pair in pairs for part in pair)
    return any(abs(a - b) > size / 10**_AGREEING for a, b in pairs)


def _agree(one: Fraction, other: Fraction, num_digits: int) -> bool:
    size, apart = max(abs(one), abs(other)), abs(one - other)
    if size < _SMALL and apart > size / 10**num_digits:
        return False
    return apart <= Fraction(1, 10**num_digits) and round(one, num_digits) == round(other, num_digits)


def num_decimals(expression: Any) -> int:
    """Returns the largest number of digits after a decimal point in the expression."""
    from sympy import Float

    decimals = [Decimal(str(number)).normalize() for number in expression.atoms(Float) if number.is_finite]
    exponents = [decimal.as_tuple().exponent for decimal in decimals]
    return max((-exponent for exponent in exponents if isinstance(exponent, int)), default=0)


def with_exact_decimals(expression: Any) -> Any:
    """Returns the expression with its decimal fractions as exact numbers."""
    from sympy import Float, Rational

    decimals = expression.atoms(Float) if hasattr(expression, "atoms") else ()
    return expression.xreplace({number: Rational(str(number)) for number in decimals}) if decimals else expression


def exact_value(expression: Any) -> Fraction | None:
    """Returns the value of a rational number of sympy, evaluated or not; None for any other number."""
    try:
        return _exact(expression)
    except (rational.TooLarge, ZeroDivisionError, RecursionError):
        return None


def _exact(expression: Any) -> Fraction | None:
    if getattr(expression, "is_Rational", False):
        return Fraction(int(expression.p), int(expression.q))
    if getattr(expression, "is_Float", False):
        return Fraction(str(expression)) if expression.is_finite else None
    evaluate = _EVALUATED.get(type(expression).__name__)
    if evaluate is None:
        return None
    values: list[Fraction] = []
    for part in expression.args:
        if (value := _exact(part)) is None:
            return None
        values.append(value)
    result = evaluate(values)
    if result is not None:
        rational.is_sizable(rational.bits_of(result))
    return result


def _product(values: list[Fraction]) -> Fraction:
    product = Fraction(1)
    for value in values:
        product *= value
        rational.is_sizable(rational.bits_of(product))
    return product


_EVALUATED: dict[str, Callable[[list[Fraction]], Fraction | None]] = {
    "Add": lambda values: sum(values, Fraction(0)),
    "Mul": _product,
    "Pow": lambda values: rational.power(*values),
    "factorial": lambda values: rational.factorial(*values),
    "binomial": lambda values: rational.binomial(*values),
    "UnevaluatedExpr": lambda values: values[0],
    "Abs": lambda values: abs(values[0]),
    "floor": lambda values: Fraction(math.floor(values[0])),
    "ceiling": lambda values: Fraction(math.ceil(values[0])),
}


def _approximation(expression: Any, precision: int) -> tuple[Fraction, Fraction] | None:
    """Returns real and imaginary part to `precision` digits, or None if they cannot be computed so precisely."""
    return _parts(with_exact_decimals(expression).doit().evalf(precision, maxn=4 * precision), precision)


def _parts(value: Any, precision: int) -> tuple[Fraction, Fraction] | None:
    """Returns real and imaginary part of an evaluated number; None if it is not a number of `precision` digits."""
    real, imaginary = (_digits(part, precision) for part in value.as_real_imag())
    return None if real is None or imaginary is None else (real, imaginary)


def _digits(number: Any, precision: int) -> Fraction | None:
    if getattr(number, "is_Rational", False):
        return Fraction(int(number.p), int(number.q))
    if not getattr(number, "is_Float", False) or not number.is_finite:
        return None
    sign, mantissa, exponent, _ = number._mpf_
    # With fewer digits it is the rounding error of a difference.
    if not mantissa or number._prec < precision * 3 or abs(exponent) > 100_000:
        return None
    value = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return -value if sign else value


def real_value(expression: Any) -> Fraction | None:
    """Returns the value of a real number, if it is irrational to many digits; None for anything else."""
    if not getattr(expression, "is_number", False) or is_too_large(expression):
        return None
    parts = _approximation(expression, _PRECISION)
    return None if parts is None or parts[1] else parts[0]


def is_too_large(expression: Any) -> bool:
    """Returns whether evaluating the expression gives a number of more than `rational.MAX_DIGITS` digits."""
    return _num_digits(expression) > rational.MAX_DIGITS


def _num_digits(expression: Any) -> float:
    """Returns an upper bound of the decimal digits of the largest number in the evaluation of the expression."""
    if getattr(expression, "is_Rational", False):
        return _DIGITS_PER_BIT * float(max(expression.p.bit_length(), expression.q.bit_length()))
    if getattr(expression, "is_Float", False):
        return _DIGITS_PER_BIT * float(max(0, expression._mpf_[2] + expression._mpf_[3]))
    parts = expression.flat() if hasattr(expression, "flat") else getattr(expression, "args", ())
    sizes = [_num_digits(part) for part in parts]
    name = type(expression).__name__
    if getattr(expression, "is_Pow", False) or name in ("factorial", "exp", "gamma"):
        return max(sizes[0], 1.0) * max(_power(expression.args[-1], sizes[-1]), 1.0)
    if name == "binomial":
        return max(sizes[0], 1.0) * max(_power(expression.args[1], sizes[1]), 1.0)
    return math.fsum(sizes)


def _power(exponent: Any, num_digits: float) -> float:
    """Returns the value of an exponent; infinity if the exponent itself is too large to be computed."""
    if num_digits > _MAX_EXPONENT_DIGITS:
        return math.inf
    return float(abs(exponent.evalf(5))) if exponent.is_number else 1.0
