import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.grpo.advantage import group_advantages, has_signal


def advantages(rewards: list[float | None], scale: str = "std", ddof: int = 1) -> list[float | None]:
    return group_advantages(rewards, scale=scale, std_ddof=ddof, std_eps=0.0)  # type: ignore[arg-type]


def test_rewards_are_compared_with_their_siblings() -> None:
    # Mean 1/4; deviations 3/4 and -1/4; variance (9/16 + 3/16) / 3 = 1/4.
    assert advantages([1, 0, 0, 0]) == [1.5, -0.5, -0.5, -0.5]
    assert advantages([1, 0, 0, 0], scale="none") == [0.75, -0.25, -0.25, -0.25]
    assert advantages([1, 0], ddof=0) == [1.0, -1.0]


@pytest.mark.parametrize("reward", [0.1, 0.3, 1 / 3, 1e300])
def test_equal_rewards_give_exactly_zero(reward: float) -> None:
    assert advantages([reward] * 7) == [0.0] * 7


def test_a_completion_without_a_reward_takes_no_part() -> None:
    assert advantages([1, None, 0]) == [advantages([1, 0])[0], None, advantages([1, 0])[1]]
    assert advantages([1, None, None]) == [0.0, None, None]
    assert not has_signal(advantages([1, None]))


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=16))
def test_advantages_add_up_to_nothing(rewards: list[float]) -> None:
    total = math.fsum(advantage or 0.0 for advantage in advantages(list(rewards), scale="none"))
    assert abs(total) < 1e-9, f"the advantages of {rewards} add up to {total}"
