"""Conversion between units of the same dimension."""

import re
from collections.abc import Iterable
from fractions import Fraction

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


def ratio(one: Iterable[tuple[str, int]], other: Iterable[tuple[str, int]]) -> Fraction | None:
    """Returns the first unit as a multiple of the other unit; None for units of different dimensions.

    Units are names and their powers, as `units.Quantity` has them.
    """
    (size, dimensions), (other_size, other_dimensions) = _in_base_units(one), _in_base_units(other)
    return size / other_size if dimensions == other_dimensions else None


def _in_base_units(measures: Iterable[tuple[str, int]]) -> tuple[Fraction, dict[str, int]]:
    size, dimensions = Fraction(1), dict[str, int]()
    for name, power in measures:
        dimension, each = _UNITS.get(name, (name, Fraction(1)))
        size *= each**power
        dimensions[dimension] = dimensions.get(dimension, 0) + power
    return size, {dimension: power for dimension, power in dimensions.items() if power}
