import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config.tables.advantage import AdvantageConfig
from shoal.grpo.token_advantage import token_advantages, uniform_advantages


def test_a_reward_is_discounted_once_for_each_token_that_counts() -> None:
    config = AdvantageConfig(discount=0.5)
    mask = np.array([True, False, True, True, False])
    (got,) = token_advantages(config, [8.0], [mask])
    assert got.tolist() == [2.0, 0.0, 4.0, 8.0, 0.0]


def test_token_rewards_count_for_their_token_and_those_before() -> None:
    mask = np.ones(3, dtype=bool)
    (got,) = token_advantages(AdvantageConfig(), [1.0], [mask], [np.array([-0.5, 0.0, -0.25])])
    assert got.tolist() == [0.25, 0.75, 0.75]


def test_whitening_weighs_every_token_equally_and_skips_tokens_that_do_not_count() -> None:
    config = AdvantageConfig(whiten=True, whiten_ddof=0, whiten_eps=0.0)
    masks = [np.array([True, True, True]), np.array([True, False, False])]
    long, short = token_advantages(config, [0.0, 4.0], masks)
    assert long.tolist() == [pytest.approx(-1 / math.sqrt(3))] * 3
    assert short.tolist() == [pytest.approx(math.sqrt(3)), 0.0, 0.0]


@given(
    values=st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 9)), min_size=1, max_size=12),
    ddof=st.integers(0, 1),
    clip=st.sampled_from([None, 0.5]),
)
def test_advantages_of_whole_completions_need_no_tokens(
    values: list[tuple[float, int]], ddof: int, clip: float | None
) -> None:
    config = AdvantageConfig(whiten=True, whiten_ddof=ddof, clip=clip)  # type: ignore[arg-type]
    given_advantages, counts = [value for value, _ in values], [count for _, count in values]
    masks = [np.ones(count, dtype=bool) for count in counts]
    nothing = [np.zeros(count) for count in counts]
    by_token = token_advantages(config, given_advantages, masks, nothing)
    for value, tokens in zip(uniform_advantages(config, given_advantages, counts), by_token, strict=True):
        assert np.allclose(tokens, value, atol=1e-6), f"{value} for the completion, {tokens.tolist()} for its tokens"


def test_a_discount_behind_turns_gives_each_turn_what_the_discount_of_tokens_gives_turns_of_one_token() -> None:
    config, rewards = AdvantageConfig(discount=0.5), [np.array([1.0, 2.0, 4.0])]
    (of_turns,) = token_advantages(config, [8.0], [np.ones(3, bool)], rewards)
    # Turns of 2, 1 and 3 tokens, with tokens of the environment between them.
    turn_of = np.array([0, 0, -1, 1, -1, -1, 2, 2, 2])
    values, discounts = np.zeros(9), np.ones(9)
    values[[1, 3, 8]], discounts[[1, 3, 8]] = rewards[0], 0.5
    (of_tokens,) = token_advantages(AdvantageConfig(), [8.0], [turn_of >= 0], [values], [discounts])
    assert of_turns.tolist() == [5.0, 8.0, 12.0]
    assert of_tokens.tolist() == [0.0 if turn < 0 else of_turns[turn] for turn in turn_of]
