import pytest

from services.coordinator.reporting.page.axes import (
    MAX_INTERVALS,
    SECONDS,
    SHARE,
    Scale,
    plain,
    points,
    signed,
    tick_step,
    ticks,
)


@pytest.mark.parametrize("high", [1e-7, 0.0123, 0.99, 1.0, 3, 7.5, 12, 4096, 1e9])
def test_ticks_are_few_round_and_reach_both_ends(high: float) -> None:
    step = tick_step(0, high)
    values = ticks(0, high, step)
    assert values[0] == 0 and 2 <= len(values) <= MAX_INTERVALS + 1, values
    assert high - values[-1] < step, f"{values} leave {high - values[-1]} of {high} without a tick"
    assert float(f"{step:.2g}") == pytest.approx(step), f"{step} is not round"


def test_ticks_cover_negative_values() -> None:
    assert ticks(-1, 1, tick_step(-1, 1)) == pytest.approx([-1, -0.5, 0, 0.5, 1])


def test_a_scale_maps_the_ends_of_its_range() -> None:
    y = Scale(0, 2, 100, 20)
    assert (y(0), y(1), y(2)) == (100, 60, 20)


def test_numbers_are_short_and_have_real_minus_signs() -> None:
    assert [plain(value) for value in (0, 0.03612, 12.44, 4096)] == ["0", "0.0361", "12.4", "4,096"]
    assert [signed(value) for value in (0.875, -0.125, 0)] == ["+0.875", "−0.125", "0"]
    assert [points(value) for value in (0.39, -0.015)] == ["+39.0", "−1.5"]
    assert [SECONDS.value(value) for value in (0.0004, 8.412, 61.04, 1234.5)] == ["0.00", "8.41", "61.0", "1,234"]
    assert (SHARE.value(0.7105), SHARE.tick(0.4)) == ("71.0%", "40%")
