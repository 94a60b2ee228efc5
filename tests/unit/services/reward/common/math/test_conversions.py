"""Tests of the ratios of units."""

from fractions import Fraction

from services.reward.common.math.conversions import ratio


def test_units_of_one_dimension_have_a_ratio() -> None:
    assert ratio([("minute", 1)], [("second", 1)]) == 60
    assert ratio([("cm", 2)], [("m", 2)]) == Fraction(1, 10_000)
    assert ratio([("km", 1), ("hour", -1)], [("m", 1), ("second", -1)]) == Fraction(5, 18)
    assert ratio([("radian", 1)], [("radian", 1)]) == 1


def test_units_of_other_dimensions_have_none() -> None:
    assert ratio([("minute", 1)], [("m", 1)]) is None
    assert ratio([("m", 2)], [("m", 1)]) is None
    assert ratio([("radian", 1)], [("degree", 1)]) is None
