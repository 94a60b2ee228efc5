from services.coordinator.workers.utilization import Utilization
from tests.support.clock import Clock


def test_time_is_idle_only_while_nothing_is_outstanding() -> None:
    clock = Clock()
    utilization = Utilization(clock)
    clock.now += 2  # idle
    utilization.out(3)
    clock.now += 5
    utilization.back(num_tokens=10)
    clock.now += 1
    utilization.back(2, num_tokens=20)
    clock.now += 2  # idle
    window = utilization.take()
    assert (window.duration_s, window.idle_s, window.num_tokens) == (10, 4, 30), window
    assert (window.idle_share, window.tokens_per_second) == (0.4, 3.0)
    assert window.mean_out == (5 * 3 + 1 * 2) / 10


def test_a_window_begins_where_the_last_one_ended() -> None:
    clock = Clock()
    utilization = Utilization(clock)
    clock.now += 1
    utilization.take()
    utilization.out()
    clock.now += 4
    window = utilization.take()
    assert window.idle_s == 0, "work beyond the end of a window counts as idle time"
    assert window.mean_out == 1
    utilization.back()
    clock.now += 1
    window = utilization.take()
    assert (window.duration_s, window.idle_share, window.mean_out) == (1, 1.0, 0), window


def test_a_window_without_time_has_rates_of_zero() -> None:
    window = Utilization(Clock()).take()
    assert (window.idle_share, window.tokens_per_second) == (0.0, 0.0)
