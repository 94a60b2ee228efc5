"""How many episodes an environment has open, and when those that are too many try again."""

import contextlib
import heapq
import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

import pytest

from services.reward.environments.environments import Places
from shoal.errors import ResourceExhausted


@dataclass
class Crowd:
    """Episodes that all begin at once, on a clock of their own, and try again when they are told to."""

    num_places: int
    duration_s: float
    now_s: float = 1000.0
    tries_s: list[float] = field(default_factory=list)

    def play(self, num_episodes: int, *, most_s: float = math.inf) -> float:
        began_s = self.now_s
        places = Places("counter", self.num_places, now_s=lambda: self.now_s)
        order = itertools.count()
        events: list[tuple[float, int, contextlib.ExitStack | None]] = [
            (began_s, next(order), None) for _ in range(num_episodes)
        ]
        while events and events[0][0] < began_s + most_s:
            self.now_s, _, open_place = heapq.heappop(events)
            if open_place is not None:
                open_place.close()
                continue
            self.tries_s.append(self.now_s - began_s)
            place = contextlib.ExitStack()
            try:
                place.enter_context(places.one())
                heapq.heappush(events, (self.now_s + self.duration_s, next(order), place))
            except ResourceExhausted as refused:
                assert refused.retry_after_s is not None
                heapq.heappush(events, (self.now_s + refused.retry_after_s, next(order), None))
        return self.now_s - began_s


@pytest.mark.parametrize(
    ("num_places", "num_episodes", "duration_s", "most"),
    [(1, 12, 0.1, 2.0), (1, 64, 0.1, 2.0), (8, 256, 0.1, 1.5), (1, 64, 1.0, 1.5), (8, 256, 10.0, 1.2)],
)
def test_a_place_is_soon_taken_again(num_places: int, num_episodes: int, duration_s: float, most: float) -> None:
    crowd = Crowd(num_places, duration_s)
    took_s = crowd.play(num_episodes)
    least_s = num_episodes / num_places * duration_s
    assert took_s <= most * least_s, (
        f"{num_episodes} episodes took {took_s:.1f} s, {took_s / least_s:.2f} times the least"
    )


@pytest.mark.parametrize(("num_places", "num_episodes"), [(1, 64), (100, 2000)])
def test_episodes_of_minutes_are_not_asked_for_in_storms(num_places: int, num_episodes: int) -> None:
    crowd = Crowd(num_places, duration_s=120.0)
    crowd.play(num_episodes, most_s=60.0)
    # Each of them comes after 5 to 10 s, once it is seen that the open ones do not end.
    rate = len(crowd.tries_s) / 60
    assert rate <= num_episodes / 5, f"{rate:.1f} calls a second for {num_episodes} episodes"
    tenths = Counter(int(at_s * 10) for at_s in crowd.tries_s if at_s > 0)
    densest = max(tenths.values())
    assert densest <= max(10, 2 * num_places), f"{densest} calls in a tenth of a second"


def test_an_environment_with_all_places_taken_says_so_and_has_one_again_after_an_episode() -> None:
    places = Places("counter", 2)
    with places.one():
        with places.one(), pytest.raises(ResourceExhausted, match="2 episodes of counter") as refused:
            places.one().__enter__()
        assert "environments.counter.max_episodes" in refused.value.message
        assert refused.value.retry_after_s == pytest.approx(0.1, abs=0.01)
        with places.one():
            pass
