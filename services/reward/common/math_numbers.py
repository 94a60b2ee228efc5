"""Numbers that math-verify finds equal and are not, or that sympy would compute forever."""

import math
import re
from typing import Any

_BASE = re.compile(r"(?<![A-Za-z\\])[0-9][0-9A-F]*_(?:\{0*([0-9]+)\}|([0-9]))")
_MAX_DIGITS = 1e6
_MAX_EXPONENT_DIGITS = 300.0
_SMALL = 1e-3
_DIGITS_PER_BIT = math.log10(2)


def bases(text: str) -> list[str]:
    """Returns the bases of a formula's numbers, in order, without 10: "8" for 12_8, which math-verify reads as 12."""
    return [base for braced, bare in _BASE.findall(text) if (base := braced or bare) != "10"]


def are_apart(one: Any, other: Any, num_digits: int) -> bool:
    """Returns whether two numbers of sympy that are equal to `num_digits` decimals, and below 0.001, differ within
    their first `num_digits` significant digits."""
    if one == other or not all(getattr(number, "is_number", False) for number in (one, other)):
        return False
    one, other = one.doit().evalf(15), other.doit().evalf(15)
    size = max(abs(one), abs(other))
    return bool(size < _SMALL and abs(one - other) > size * 10.0**-num_digits)


def is_too_large(expression: Any) -> bool:
    """Returns whether evaluating the expression gives a number of more than a million digits, as 9^{9^{9}} does."""
    return _num_digits(expression) > _MAX_DIGITS


def _num_digits(expression: Any) -> float:
    """Returns an upper bound for the decimal digits of the largest number that evaluating the expression gives."""
    if getattr(expression, "is_Rational", False):
        return _DIGITS_PER_BIT * float(max(expression.p.bit_length(), expression.q.bit_length()))
    if getattr(expression, "is_Float", False):
        return _DIGITS_PER_BIT * float(max(0, expression._mpf_[2] + expression._mpf_[3]))
    parts = expression.flat() if hasattr(expression, "flat") else getattr(expression, "args", ())
    sizes = [_num_digits(part) for part in parts]
    if getattr(expression, "is_Pow", False) or type(expression).__name__ == "factorial":
        return max(sizes[0], 1.0) * max(_power(expression.args[-1], sizes[-1]), 1.0)
    return math.fsum(sizes)


def _power(exponent: Any, num_digits: float) -> float:
    """Returns the value of an exponent; infinity for one that is itself too large to be computed."""
    if num_digits > _MAX_EXPONENT_DIGITS:
        return math.inf
    return float(abs(exponent.evalf(5))) if exponent.is_number else 1.0
