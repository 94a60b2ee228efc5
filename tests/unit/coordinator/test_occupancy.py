from services.coordinator.occupancy import Occupancy


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_is_idle_only_while_nothing_is_out() -> None:
    clock = Clock()
    occupancy = Occupancy(clock)
    clock.now += 2  # idle
    occupancy.out(3)
    clock.now += 5
    occupancy.back(num_tokens=10)
    clock.now += 1
    occupancy.back(2, num_tokens=20)
    clock.now += 2  # idle
    window = occupancy.take()
    assert (window.duration_s, window.idle_s, window.num_tokens) == (10, 4, 30), window
    assert (window.idle_share, window.tokens_per_second) == (0.4, 3.0)


def test_a_window_begins_where_the_one_before_ended() -> None:
    clock = Clock()
    occupancy = Occupancy(clock)
    clock.now += 1
    occupancy.take()
    occupancy.out()
    clock.now += 4
    assert occupancy.take().idle_s == 0, "work that goes on over the end of a window is no idling"
    occupancy.back()
    clock.now += 1
    window = occupancy.take()
    assert (window.duration_s, window.idle_share) == (1, 1.0), window


def test_no_time_has_no_rates() -> None:
    window = Occupancy(Clock()).take()
    assert (window.idle_share, window.tokens_per_second) == (0.0, 0.0)
