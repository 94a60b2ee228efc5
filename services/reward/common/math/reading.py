"""An answer in the form for comparison: its value, unit and marks, and its expression in computer algebra."""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from services.reward.common.math import marks, rational, units
from services.reward.common.math.notation import in_common_notation, with_letters

_COMMA_NUMBER = re.compile(r"[-+]?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]*)?")
_DECIMAL_COMMA = re.compile(r"[-+]?0,[0-9]+")
_LETTERS = re.compile(r"[A-Z]{2,}")
WORD_OR = re.compile(r"\s*\\text\{\s*(?:or|and)\s*\}\s*")
_TIME = re.compile(r"(0?[1-9]|1[0-2])(?::([0-5][0-9]))?")
_WORD = re.compile(r"[A-Z][a-z]{2,}|[a-z]{5,}")
_TEXT = re.compile(r"\\(?:text\w{0,4}|mathrm|mathbf|mathit|operatorname|mbox)\s*\{([^{}]*)\}")
_SPLIT_LETTERS = re.compile(r"[\s,;>-]|\\(?:to|rightarrow|Rightarrow|longrightarrow)(?![a-zA-Z])")
_ALIGNED = re.compile(
    r"\\(?:begin|end)\{(?:aligned|align|equation|gather|gathered|split|array|cases|eqnarray|multline)\*?\}(?:\{[^{}]*\})?"
)


@dataclass(frozen=True)
class Reading:
    text: str
    """The answer in common notation."""
    value: str
    """The value, without unit, words of size, modulus and any sign before the answer."""
    quantity: units.Quantity
    marks: marks.Marks
    modulus: str
    operators: tuple[str, ...]
    """The operators that are left to be computed."""
    number: rational.Rational | None
    """The value, if it is rational."""
    is_too_large: bool
    """Whether the value has too many digits to be computed."""

    @property
    def letters(self) -> str:
        """The word or sequence of capitals that is the answer; "" for anything else."""
        text = _TEXT.sub(r"\1", self.value).strip("() ")
        return text if _LETTERS.fullmatch(text) or _WORD.fullmatch(text) else ""

    @property
    def word(self) -> str:
        """The word or letter that is the answer; "" for anything else."""
        text = _TEXT.sub(r"\1", self.value).strip("() ")
        return text if text.isascii() and text.isalpha() else ""

    @property
    def joined_letters(self) -> str:
        """The letters of the answer without separators: A, B and C -> ABC."""
        return _SPLIT_LETTERS.sub("", re.sub(r"\band\b", "", _TEXT.sub(r"\1", self.value))).strip("()")

    @property
    def value_without_dots(self) -> str:
        return self.value.replace("\\ldots", "").strip().rstrip(",;:") if self.marks.dots else self.value

    @property
    def sides(self) -> list[str]:
        """The sides of the answer if it is an equation; empty for a list, else one side."""
        found = marks.elements(WORD_OR.sub(", ", self.value))
        return [side.strip() for side in found[0]] if len(found) == 1 else []


@lru_cache(maxsize=4096)
def read(latex: str) -> Reading:
    text = marks.without_condition(in_common_notation(_one_line(latex)))
    found = marks.marks(text)
    residue, modulus = marks.without_modulus(marks.without_relation(text))
    quantity = units.quantity(residue)
    return _reading(text, quantity, found, modulus)


def with_bare_unit(reading: Reading) -> Reading | None:
    """Returns the reading of 5m as 5 meters; None for an answer without such a reading."""
    quantity = units.with_bare_unit(reading.quantity)
    return None if quantity is None else _reading(reading.text, quantity, reading.marks, reading.modulus)


def _reading(text: str, quantity: units.Quantity, found: marks.Marks, modulus: str) -> Reading:
    value = with_letters(quantity.value).strip()
    number, is_too_large = _time_of_day(value, quantity) or _number(value)
    return Reading(text, value, quantity, found, modulus, marks.operators(value), number, is_too_large)


def _time_of_day(value: str, quantity: units.Quantity) -> tuple[rational.Rational, bool] | None:
    """Returns the minutes since midnight or noon of 1:30 PM; None for anything else."""
    found = _TIME.fullmatch(value)
    if found is None or not quantity.measures <= {("am", 1), ("pm", 1)} or not quantity.measures:
        return None
    return rational.Rational(Fraction(int(found[1]) % 12 * 60 + int(found[2] or 0))), False


def scaled(number: rational.Rational, factor: Fraction) -> rational.Rational:
    """Returns a number times the factor of the words of size, such as "million", after it."""
    return rational.Rational(number.value * factor, number.num_decimals)


@lru_cache(maxsize=4096)
def number_of(latex: str) -> rational.Rational | None:
    """Returns the value of a rational number; None for anything else, and for a number that is too large."""
    return _number(latex)[0]


def _number(latex: str) -> tuple[rational.Rational | None, bool]:
    if _COMMA_NUMBER.fullmatch(latex):
        latex = latex.replace(",", "")
    elif _DECIMAL_COMMA.fullmatch(latex):
        latex = latex.replace(",", ".")
    try:
        return rational.rational_value(latex), False
    except rational.TooLarge:
        return None, True


def _one_line(latex: str) -> str:
    """Returns a display of several lines, x &= 3 + 4 \\\\ &= 7, as an equation; else its last line."""
    if not _ALIGNED.search(latex):
        return latex
    lines = [line.replace("&", "").strip(" \n\t.") for line in _ALIGNED.sub("", latex).split("\\\\")]
    lines = [line for line in lines if line]
    if not lines:
        return latex
    joined = lines[-1]
    for line in reversed(lines[:-1]):
        if not joined.startswith("="):
            break
        joined = f"{line} {joined}"
    return joined
