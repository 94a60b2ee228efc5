"""Tests of the ratios of units."""

from fractions import Fraction

from services.reward.common.math.restated import unit_ratio


def test_units_of_one_dimension_have_a_ratio() -> None:
    assert unit_ratio([("minute", 1)], [("second", 1)]) == 60
    assert unit_ratio([("cm", 2)], [("m", 2)]) == Fraction(1, 10_000)
    assert unit_ratio([("km", 1), ("hour", -1)], [("m", 1), ("second", -1)]) == Fraction(5, 18)
    assert unit_ratio([("radian", 1)], [("radian", 1)]) == 1


def test_units_of_other_dimensions_have_none() -> None:
    assert unit_ratio([("minute", 1)], [("m", 1)]) is None
    assert unit_ratio([("m", 2)], [("m", 1)]) is None
    assert unit_ratio([("radian", 1)], [("degree", 1)]) is None
