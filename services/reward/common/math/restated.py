"""Answers given in several forms: 3/8 = 0.375, 10\\pi \\approx 31.4, 10 minutes, or 600 seconds."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from services.reward.common.math import algebra, marks, units, values
from services.reward.common.math.reading import Reading, read

_APPROXIMATELY = re.compile(r"\\approx(?![a-zA-Z])")
_DECIMAL = re.compile(r"[-+]?[0-9]*(?:\.([0-9]+))?")
_UNREAD = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]|\\text|_|[%$€£¥₹]|\\circ|/.*(?:/|\\frac)|\\frac.*/")
"""Parts that no number has, or that are ambiguous: letters, units within a formula, a/b/c."""
_NEARLY = Fraction(1, 20)
"""Largest relative difference between a value and a number that is said to be near it."""
_ROUNDED = Fraction(1, 5)
"""Largest relative difference of a number from its rounding to a whole number."""
_TABLE = """
    length m=1 cm=1/100 mm=1/1000 km=1000 inch=0.0254 foot=0.3048 yard=0.9144 mile=1609.344
    mass g=1 kg=1000 mg=1/1000 ton=1000000 pound=453.59237 ounce=28.349523125
    volume liter=1 ml=1/1000 gallon=3.785411784
    time second=1 minute=60 hour=3600 day=86400 week=604800
    calendar month=1 year=12
    money dollar=1 cent=1/100
    information bit=1 byte=8
"""
_UNITS = {
    name: (dimension, Fraction(size))
    for dimension, *sizes in (line.split() for line in _TABLE.strip().splitlines())
    for name, size in (re.split("=", each) for each in sizes)
}
"""The dimension of each unit, and its size in that dimension's first unit."""


@dataclass(frozen=True)
class Amount:
    value: Fraction
    last_digit: Fraction | None
    """The size of the last digit of a decimal number; None for a formula."""


@dataclass(frozen=True)
class Form:
    reading: Reading
    value: Fraction
    """The value, without unit and words of size."""
    is_near: bool = False
    """Whether the text calls it approximately equal to the forms before it."""

    @property
    def last_digit(self) -> Fraction | None:
        found = _DECIMAL.fullmatch(self.reading.value)
        return Fraction(1, 10 ** len(found[1] or "")) if found else None

    @property
    def amounts(self) -> list[Amount]:
        """The value, and the value times its words of size. For a percentage, also both divided by 100."""
        factors = dict.fromkeys((Fraction(1), self.reading.quantity.factor))
        if self.reading.quantity.is_percent:
            factors |= dict.fromkeys([factor / 100 for factor in factors])
        digit = self.last_digit
        return [Amount(self.value * factor, digit and digit * factor) for factor in factors]


def is_same(value: Fraction, written: Amount) -> bool:
    """Returns whether a value equals the written amount, or is rounded or cut to it (at least two digits)."""
    apart, digit = abs(value - written.value), written.last_digit
    return not apart or (
        digit is not None and digit.numerator == 1 < digit.denominator and apart <= digit <= abs(written.value) / 10
    )


def is_rounded(value: Fraction, written: Amount) -> bool:
    """Returns whether a value equals the written amount, or is rounded to it, even to a whole number that is near."""
    apart, digit = abs(value - written.value), written.last_digit
    if is_same(value, written) or digit is None:
        return is_same(value, written)
    return apart <= digit / 2 and (digit.numerator < digit.denominator or apart <= abs(value) * _ROUNDED)


def is_near(value: Fraction, written: Amount) -> bool:
    """Returns whether a value is rounded to the written amount, or differs from it by a few percent."""
    size = max(abs(value), abs(written.value))
    return is_rounded(value, written) or abs(value - written.value) <= size * _NEARLY


def forms(answer: Reading) -> list[Form]:
    """Returns the sides of a chain of equations that have no letters; empty if there are fewer than two."""
    if "=" not in answer.text and "\\approx" not in answer.text:
        return []
    if answer.modulus or answer.operators or answer.marks.bases or answer.marks.dots:
        return []
    parts = [marks.elements(part) for part in _APPROXIMATELY.split(answer.text)]
    if any(len(part) > 1 for part in parts):
        return []
    sides = [(read(side.strip()), index > 0) for index, part in enumerate(parts) for side in part[0] if side.strip()]
    sides = [(reading, is_near) for reading, is_near in sides if not _UNREAD.search(reading.value)]
    found = [form_of(reading, is_near) for reading, is_near in sides] if len(sides) > 1 else []
    return [form for form in found if form] if sum(map(bool, found)) > 1 else []


def form_of(reading: Reading, is_near: bool = False) -> Form | None:
    """Returns the form of a number, with or without a unit; None for anything else."""
    if reading.marks.relation or reading.modulus:
        return None
    if _UNREAD.search(reading.value) or reading.operators or reading.is_too_large or not reading.quantity.is_number:
        return None
    if reading.number is not None:
        return Form(reading, reading.number.value, is_near)
    value = values.real_value(algebra.parsed(reading.value))
    return None if value is None else Form(reading, value, is_near)


def agree(one: Form, other: Form, is_close: Callable[[Fraction, Amount], bool] = is_same) -> bool | None:
    """Returns whether the amounts of two forms are close; None if their units cannot be compared."""
    a, b = one.reading.quantity, other.reading.quantity
    ratio = unit_ratio(a.measures, b.measures) if a.measures and b.measures else Fraction(1)
    if ratio is None:
        return None
    pairs = [(x, y) for x in one.amounts for y in other.amounts]
    if any(is_close(x.value * ratio, y) or is_close(y.value / ratio, x) for x, y in pairs):
        return True
    is_unit_missing = bool(a.measures) != bool(b.measures)
    return None if is_unit_missing or (units.are_other_units(a, b) and not a.measures) else False


def contradict(found: Sequence[Form]) -> bool:
    """Returns whether any two forms are of different amounts."""
    return any(
        agree(one, other, is_near if other.is_near else is_rounded) is False
        for index, other in enumerate(found)
        for one in found[:index]
    )


def sum_of(latex: Sequence[str]) -> Form | None:
    """Returns the form of a number, or of quantities that add up (3 hours 20 minutes); None for anything else."""
    found = [form_of(read(each)) for each in latex]
    first = found[0]
    if first is None or len(found) == 1:
        return first
    total = first.value * first.reading.quantity.factor
    for form in found[1:]:
        if form is None or not form.reading.quantity.measures:
            return None
        ratio = unit_ratio(form.reading.quantity.measures, first.reading.quantity.measures)
        if ratio is None:
            return None
        total += form.value * form.reading.quantity.factor * ratio
    return Form(first.reading, total)


def unit_ratio(one: Iterable[tuple[str, int]], other: Iterable[tuple[str, int]]) -> Fraction | None:
    """Returns the first unit as a multiple of the other; None for different dimensions. Units are names and powers, as
    in `units.Quantity`."""
    (size, dimensions), (other_size, other_dimensions) = _in_base_units(one), _in_base_units(other)
    return size / other_size if dimensions == other_dimensions else None


def _in_base_units(measures: Iterable[tuple[str, int]]) -> tuple[Fraction, dict[str, int]]:
    size, dimensions = Fraction(1), dict[str, int]()
    for name, power in measures:
        dimension, each = _UNITS.get(name, (name, Fraction(1)))
        size *= each**power
        dimensions[dimension] = dimensions.get(dimension, 0) + power
    return size, {dimension: power for dimension, power in dimensions.items() if power}
