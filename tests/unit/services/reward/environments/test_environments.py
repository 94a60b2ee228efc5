"""How many episodes an environment has open, and what becomes of those that are too many."""

import itertools

import pytest

from services.reward.environments.environments import Environments
from shoal.config.environments import EnvironmentConfig
from shoal.errors import ResourceExhausted

NUM_PLACES = 100


async def test_those_that_are_too_many_try_again_one_after_the_other() -> None:
    environments = Environments([EnvironmentConfig(name="counter", max_episodes=NUM_PLACES)])
    for _ in range(NUM_PLACES):
        environments._open("counter", NUM_PLACES)
    waits = []
    for _ in range(2000):
        with pytest.raises(ResourceExhausted, match="100 episodes of counter are open") as refused:
            environments._open("counter", NUM_PLACES)
        assert refused.value.retry_after_s is not None
        waits.append(refused.value.retry_after_s)
    # An episode is taken to last 10 s at first, so ten places become free in a second.
    assert waits[0] == pytest.approx(0.1) and waits[49] == pytest.approx(5, abs=1), waits[:50]
    assert all(wait <= 10 for wait in waits) and all(later > wait - 1 for wait, later in itertools.pairwise(waits))
    assert sum(wait < 1 for wait in waits) <= 20, "they come as a storm"
