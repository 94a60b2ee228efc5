import math

import pytest

from services.generator.workers.recent_mean import RecentMean


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


def test_a_moment_counts_less_the_longer_it_is_ago() -> None:
    clock = Clock()
    recent = RecentMean(5.0, clock)
    assert recent.mean is None
    recent.set(0.5)
    clock.now += 100
    assert recent.mean == pytest.approx(0.5)
    recent.set(0.0)
    assert recent.mean == pytest.approx(0.5), "no time has passed"
    clock.now += 5
    assert recent.mean == pytest.approx(0.5 / math.e) and recent.mean == pytest.approx(0.5 / math.e), "reads change it"
    clock.now += 5
    assert recent.mean == pytest.approx(0.5 / math.e**2)


def test_bursts_between_two_readings_show_with_their_share_of_the_time() -> None:
    clock = Clock()
    recent = RecentMean(5.0, clock)
    recent.set(0.0)
    for _ in range(200):
        recent.set(0.8)
        clock.now += 0.05
        recent.set(0.0)
        clock.now += 0.15
    assert recent.mean == pytest.approx(0.2, abs=0.02)
