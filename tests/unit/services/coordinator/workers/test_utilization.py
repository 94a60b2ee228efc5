from services.coordinator.workers.utilization import Samples, Utilization
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


def test_one_long_completion_keeps_the_generators_from_being_idle_and_shows_as_one_seat() -> None:
    clock = Clock()
    utilization = Utilization(clock)
    utilization.out(64)
    clock.now += 1
    utilization.back(63)
    clock.now += 9
    window = utilization.take()
    assert (window.idle_share, window.mean_out) == (0, 7.3), window


def test_samples_give_their_mean_since_the_last_reading_or_else_the_last_one() -> None:
    samples = Samples()
    assert samples.take() is None
    samples.add(0.5)
    samples.add(1.0)
    assert [samples.take(), samples.take()] == [0.75, 1.0]
