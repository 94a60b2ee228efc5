"""Exact values of rational answers, which are read without computer algebra and bounded before they are computed."""

import math
import re
from dataclasses import dataclass, replace
from fractions import Fraction

MAX_DIGITS = 100_000
"""Decimal digits of the largest number that is computed."""
_MAX_BITS = int(MAX_DIGITS / math.log10(2))
_MAX_LEVELS = 100
_TOKEN = re.compile(
    r"\s+|(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)|(?P<command>\\(?:[a-zA-Z]+|.))|(?P<sign>[-+*/^!(){}\[\]:|])",
    re.DOTALL,
)
_IGNORED = ("\\left", "\\right", "\\displaystyle", "\\,", "\\;", "\\!", "\\:", "\\ ", "\\quad")
_TIMES = ("*", "\\cdot", "\\times", "\\ast")
_OVER = ("/", "\\div", ":")
_FRACTIONS = ("\\frac", "\\dfrac", "\\tfrac", "\\cfrac")
_CLOSING = {"(": ")", "{": "}", "[": "]"}


class TooLarge(Exception):
    """The value has more than `MAX_DIGITS` digits."""


class _Unread(Exception):
    """The text is not a rational number, or its notation is not supported here."""


@dataclass(frozen=True)
class Rational:
    value: Fraction
    num_decimals: int = 0
    """Largest number of digits after a decimal point among the numbers that it is computed from."""


def rational_value(latex: str) -> Rational | None:
    """Returns the value of +, -, *, /, powers, roots, factorials and binomials of numbers; None for anything else.
    Raises `TooLarge` before it computes a number of more than `MAX_DIGITS` digits."""
    try:
        reader = _Reader(_tokens(latex))
        value = reader.sum(0)
        return value if reader.is_at_end() else None
    except (_Unread, ZeroDivisionError, RecursionError):
        return None


def is_sizable(bits: float) -> float:
    """Returns the number of bits. Raises `TooLarge` for too many bits."""
    if bits > _MAX_BITS:
        raise TooLarge
    return bits


def power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """Returns a power if it is rational, else None. Raises `TooLarge`."""
    if exponent.denominator != 1:
        root = _root(base, exponent.denominator)
        return None if root is None else power(root, Fraction(exponent.numerator))
    if base == 0 and exponent < 0:
        return None
    if abs(base) not in (0, 1):
        is_sizable(bits_of(base) * float(min(abs(exponent), Fraction(10) ** 30)))
    elif abs(exponent) > 10**30:
        exponent = Fraction(2 if exponent % 2 == 0 else 1)
    return base ** int(exponent)


def factorial(value: Fraction) -> Fraction | None:
    """Returns a factorial, or None if the number has none. Raises `TooLarge`."""
    if value.denominator != 1 or value < 0:
        return None
    is_sizable(math.lgamma(min(value, Fraction(10) ** 30) + 1) / math.log(2))
    return Fraction(math.factorial(int(value)))


def binomial(top: Fraction, bottom: Fraction) -> Fraction | None:
    """Returns a binomial coefficient of whole numbers, else None. Raises `TooLarge`."""
    if top.denominator != 1 or bottom.denominator != 1 or top < 0:
        return None
    smaller = min(bottom, top - bottom)
    if smaller < 0:
        return Fraction(0)
    is_sizable(float(min(smaller, Fraction(10) ** 30)) * max(bits_of(top), 1) / 2)
    return Fraction(math.comb(int(top), int(bottom)))


def bits_of(value: Fraction) -> int:
    """Returns the bits of the larger of numerator and denominator."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _root(base: Fraction, degree: int) -> Fraction | None:
    """Returns the exact root, None if it is irrational or not real."""
    if base < 0 or not 1 <= degree <= 64 or bits_of(base) > 4096:
        return None
    parts = [_whole_root(number, degree) for number in (base.numerator, base.denominator)]
    return Fraction(parts[0], parts[1]) if parts[0] is not None and parts[1] is not None else None


def _whole_root(number: int, degree: int) -> int | None:
    low, high = 0, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if middle**degree < number else (low, middle)
    return low if low**degree == number else None


def _tokens(latex: str) -> list[str]:
    found, position = [], 0
    while position < len(latex):
        token = _TOKEN.match(latex, position)
        if token is None:
            raise _Unread
        if token.lastgroup and token[0] not in _IGNORED:
            found.append(token[0])
        elif token.lastgroup is None and found and found[-1][-1].isdigit() and latex[token.end() :][:1].isdigit():
            raise _Unread  # Two numbers side by side.
        position = token.end()
    return found


class _Reader:
    """Reads tokens from left to right. Each method reads one level of precedence."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0

    def is_at_end(self) -> bool:
        return self._position == len(self._tokens)

    def sum(self, level: int) -> Rational:
        if level > _MAX_LEVELS:
            raise _Unread
        total = self._product(level)
        while self._next() in ("+", "-"):
            sign = self._take()
            term = self._product(level)
            total = _checked(total.value + (term.value if sign == "+" else -term.value), total, term)
        return total

    def _product(self, level: int) -> Rational:
        product = self._signed(level)
        while not self.is_at_end():
            token = self._next()
            if token in _TIMES or token in _OVER:
                self._take()
                factor = self._signed(level)
                inverse = token in _OVER
            elif token in ("(", "{", "\\sqrt", "\\binom", *_FRACTIONS):
                factor, inverse = self._power(level), False
            else:
                break
            product = _checked(
                product.value / factor.value if inverse else product.value * factor.value, product, factor
            )
        return product

    def _signed(self, level: int) -> Rational:
        if self._next() in ("-", "+"):
            sign = self._take()
            if level > _MAX_LEVELS:
                raise _Unread
            value = self._signed(level + 1)
            return value if sign == "+" else replace(value, value=-value.value)
        whole = self._power(level)
        if self._next() in _FRACTIONS and whole.value.denominator == 1 and self._tokens[self._position - 1].isdigit():
            part = self._power(level)
            if part.value > 0:  # A mixed number.
                return replace(whole, value=whole.value + part.value)
            return _checked(whole.value * part.value, whole, part)
        return whole

    def _power(self, level: int) -> Rational:
        base = self._atom(level)
        while self._next() in ("!", "^"):
            if self._take() == "!":
                base = _known(factorial(base.value), base)
            else:
                exponent = self._signed_exponent(level)
                base = _known(power(base.value, exponent.value), base, exponent)
        return base

    def _signed_exponent(self, level: int) -> Rational:
        if level > _MAX_LEVELS:
            raise _Unread
        if self._next() == "-":
            self._take()
            value = self._signed_exponent(level + 1)
            return replace(value, value=-value.value)
        exponent = self._atom(level + 1)
        if self._next() == "^":  # 2^3^2 is evaluated from the right.
            self._take()
            above = self._signed_exponent(level + 1)
            exponent = _known(power(exponent.value, above.value), exponent, above)
        return exponent

    def _atom(self, level: int) -> Rational:
        token = self._take()
        if token[0].isdigit() or token[0] == ".":
            if len(token) > MAX_DIGITS // 25:
                raise _Unread
            return Rational(Fraction(token + "0" if token.endswith(".") else token), len(token.partition(".")[2]))
        if token in _CLOSING:
            value = self.sum(level + 1)
            if self._take() != _CLOSING[token]:
                raise _Unread
            return value
        if token in _FRACTIONS:
            top, bottom = self._argument(level), self._argument(level)
            return _checked(top.value / bottom.value, top, bottom)
        if token == "\\binom":
            top, bottom = self._argument(level), self._argument(level)
            return _known(binomial(top.value, bottom.value), top, bottom)
        if token == "\\sqrt":
            degree = self._atom(level + 1) if self._next() == "[" else Rational(Fraction(2))
            radicand = self._argument(level)
            if not degree.value:
                raise _Unread
            if radicand.value < 0 and degree.value.denominator == 1 and degree.value % 2:
                root = power(-radicand.value, 1 / degree.value)  # The real root, which \sqrt[3]{-8} means.
                return _known(None if root is None else -root, radicand, degree)
            return _known(power(radicand.value, 1 / degree.value), radicand, degree)
        raise _Unread

    def _argument(self, level: int) -> Rational:
        """Reads a group in braces, or one digit, as \\frac12 has two."""
        token = self._next()
        if token == "{":
            return self._atom(level + 1)
        if not token[:1].isdigit():
            raise _Unread
        if not token.isdigit() and len(token) > 1:
            raise _Unread
        self._tokens[self._position : self._position + 1] = [token[0], *([token[1:]] if token[1:] else [])]
        return self._atom(level)

    def _next(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next()
        if not token:
            raise _Unread
        self._position += 1
        return token


def _known(value: Fraction | None, *parts: Rational) -> Rational:
    if value is None:
        raise _Unread
    return _checked(value, *parts)


def _checked(value: Fraction, *parts: Rational) -> Rational:
    is_sizable(bits_of(value))
    return Rational(value, max(part.num_decimals for part in parts))
