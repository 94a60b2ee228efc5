import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shoal.config.tables.advantage import AdvantageConfig
from shoal.grpo.advantage import (
    RewardGroup,
    batch_normalized,
    completion_advantages,
    has_signal,
    seen_rewards,
    weighted_sum,
)
from shoal.grpo.moments import Moments
from shoal.scores import MAX_REWARD


def advantages(rewards: list[float | None], **options: object) -> list[float | None]:
    config = AdvantageConfig(**({"scale": "none"} | options))  # type: ignore[arg-type]
    return completion_advantages(config, [RewardGroup(tuple(rewards))])[0]


def test_a_group_is_compared_with_its_mean() -> None:
    assert advantages([1, 0, 0, None]) == [pytest.approx(2 / 3), pytest.approx(-1 / 3), pytest.approx(-1 / 3), None]


def test_the_scale_is_the_standard_deviation_of_the_group() -> None:
    got = advantages([3, 1], scale="group_std", std_ddof=1, std_eps=0.0)
    assert got == [pytest.approx(1 / math.sqrt(2)), pytest.approx(-1 / math.sqrt(2))]


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "length_weighted", "second_best"])
@pytest.mark.parametrize("rewards", [[0.1] * 7, [0.3], [0.3, None, None], [1 / 3, 1 / 3, None]])
def test_equal_rewards_and_a_single_one_have_advantages_of_exactly_0(
    baseline: str, rewards: list[float | None]
) -> None:
    config = AdvantageConfig(baseline=baseline, scale="none")  # type: ignore[arg-type]
    group = RewardGroup(tuple(rewards), num_tokens=(3,) * len(rewards))
    got = completion_advantages(config, [group])[0]
    assert got == [None if reward is None else 0.0 for reward in rewards]
    assert not has_signal(config, group)


def test_the_siblings_are_the_baseline_of_rloo() -> None:
    assert advantages([1, 0, 2], baseline="leave_one_out") == [0.0, -1.5, 1.5]


def test_the_siblings_deviation_divides_unless_it_is_0() -> None:
    got = advantages([1, 0, 0], baseline="leave_one_out", scale="leave_one_out_std", std_eps=0.0)
    assert got == [1.0, pytest.approx(-0.5 / math.sqrt(0.5)), pytest.approx(-0.5 / math.sqrt(0.5))]


def test_long_completions_weigh_more_in_the_baseline_of_opo() -> None:
    config = AdvantageConfig(baseline="length_weighted", scale="none")
    group = RewardGroup((1.0, 0.0), num_tokens=(30, 10))
    assert completion_advantages(config, [group]) == [[0.25, -0.75]]


def test_pass_at_k_gives_only_the_best_an_advantage_which_is_its_lead() -> None:
    assert advantages([0.2, 1.0, 0.7], baseline="second_best") == [0.0, pytest.approx(0.3), 0.0]
    assert advantages([1.0, 1.0, 0.0], baseline="second_best") == [0.0, 0.0, 0.0]


def test_the_greedy_answer_is_the_baseline_of_remax() -> None:
    config = AdvantageConfig(baseline="greedy", scale="none")
    group = RewardGroup((1.0, 0.0), greedy_reward=1.0)
    assert completion_advantages(config, [group]) == [[0.0, -1.0]]
    assert has_signal(config, group) and not has_signal(config, RewardGroup((1.0, 1.0), greedy_reward=1.0))
    assert not has_signal(config, RewardGroup((1.0, 0.0))), "nothing to compare with"


def test_the_batch_is_the_baseline_across_groups() -> None:
    config = AdvantageConfig(baseline="batch_mean", scale="batch_std", std_ddof=0, std_eps=0.0)
    groups = [RewardGroup((1.0, 1.0)), RewardGroup((0.0, None, 0.0))]
    assert completion_advantages(config, groups) == [[1.0, 1.0], [-1.0, None, -1.0]]
    equal = [RewardGroup((0.1,)), RewardGroup((0.1, 0.1))]
    assert completion_advantages(config, equal) == [[0.0], [0.0, 0.0]]


def test_gpg_divides_by_the_share_of_rewards_that_are_not_0() -> None:
    config = AdvantageConfig(scale="nonzero_share")
    got = completion_advantages(config, [RewardGroup((1.0, 0.0)), RewardGroup((0.0, 0.0))])
    assert got == [[2.0, -2.0], [0.0, 0.0]]


def test_each_verifier_is_compared_by_itself_in_gdpo() -> None:
    config = AdvantageConfig(per_verifier=True, std_ddof=0, std_eps=0.0)
    parts = ((1.0, 10.0), (0.0, 10.0), (0.0, 40.0))
    group = RewardGroup((11.0, 10.0, 40.0), parts, (1.0, 2.0))
    first, second, third = completion_advantages(config, [group])[0]
    root = math.sqrt(2)
    assert (first, second, third) == (
        pytest.approx(root - 2 / root),
        pytest.approx(-1 / root - 2 / root),
        pytest.approx(-1 / root + 2 * root),
    )


def test_rewards_are_clipped_first_and_advantages_afterwards() -> None:
    assert advantages([9, 0], reward_max=1.0) == [0.5, -0.5]
    assert advantages([9, 0], reward_clip=2.0) == [2.0, -2.0]


def test_a_missing_verifier_is_left_out_of_the_sum_and_never_0() -> None:
    assert weighted_sum([1.0, None, 2.0], [1.0, 5.0, 0.5]) == 2.0
    assert weighted_sum([None], [1.0]) is None


def test_running_statistics_cover_all_rewards_so_far_including_the_current_ones() -> None:
    config = AdvantageConfig(baseline="running_mean", scale="running_std", std_eps=1e-6)
    seen: list[float] = []
    moments = Moments()
    for rewards in ([1.0, 0.0, 1.0], [0.0, 0.0], [0.25, 3.0, 1e-3]):
        groups = [RewardGroup(tuple(rewards))]
        seen += rewards
        moments = seen_rewards(config, groups, moments)
        mean, std = statistics.fmean(seen), statistics.stdev(seen)
        assert (moments.count, moments.mean) == (len(seen), pytest.approx(mean, rel=1e-14))
        assert moments.std(1) == pytest.approx(std, rel=1e-14) and moments.std(0) == pytest.approx(
            statistics.pstdev(seen)
        )
        (got,) = completion_advantages(config, groups, moments)
        assert got == [pytest.approx((reward - mean) / (std + 1e-6), rel=1e-12) for reward in rewards]


def test_rewards_that_were_always_equal_have_advantages_of_exactly_0() -> None:
    config = AdvantageConfig(baseline="running_mean", scale="running_std")
    moments = Moments()
    for _ in range(3):
        groups = [RewardGroup((0.1, 0.1, None)), RewardGroup((0.1,))]
        moments = seen_rewards(config, groups, moments)
        assert completion_advantages(config, groups, moments) == [[0.0, 0.0, None], [0.0]]
    later = [RewardGroup((0.2, 0.2))]
    moments = seen_rewards(config, later, moments)
    assert completion_advantages(config, later, moments)[0][0] > 0, "a group of equal rewards above the run's mean"
    assert has_signal(config, later[0])


def test_a_running_deviation_divides_the_difference_from_another_baseline() -> None:
    config = AdvantageConfig(baseline="group_mean", scale="running_std", std_eps=0.0)
    moments = Moments().seen([5.0, 7.0])
    groups = [RewardGroup((1.0, 0.0))]
    moments = seen_rewards(config, groups, moments)
    (got,) = completion_advantages(config, groups, moments)
    std = statistics.stdev([5.0, 7.0, 1.0, 0.0])
    assert got == [pytest.approx(0.5 / std), pytest.approx(-0.5 / std)]


def test_batch_normalization_centers_and_scales_over_all_groups() -> None:
    config = AdvantageConfig(batch_normalize=True, batch_std_eps=0.0)
    root = math.sqrt(2)
    assert batch_normalized(config, [[3.0], [1.0]]) == [[pytest.approx(1 / root)], [pytest.approx(-1 / root)]]
    assert batch_normalized(config, [[0.1, 0.1], [0.1]]) == [[0.0, 0.0], [0.0]]


@pytest.mark.parametrize(
    "options",
    [
        {"baseline": "none"},
        {"baseline": "greedy", "scale": "group_std"},
        {"baseline": "leave_one_out"},
        {"per_verifier": True, "baseline": "greedy", "scale": "none"},
        {"reward_min": 1.0, "reward_max": 0.0},
        {"baseline": "running_mean"},
        {"baseline": "running_mean", "scale": "running_std", "per_verifier": True},
        {"scale": "running_std", "step_rewards": True},
    ],
)
def test_parts_that_do_not_fit_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AdvantageConfig(**options)  # type: ignore[arg-type]


@given(
    rewards=st.lists(st.one_of(st.none(), st.integers(-8, 8).map(float)), min_size=1, max_size=10),
    shift=st.integers(-5, 5),
    baseline=st.sampled_from(["group_mean", "leave_one_out", "second_best"]),
)
def test_a_constant_added_to_all_rewards_of_a_group_changes_nothing(
    rewards: list[float | None], shift: int, baseline: str
) -> None:
    shifted = [None if reward is None else reward + shift for reward in rewards]
    first, second = advantages(rewards, baseline=baseline), advantages(shifted, baseline=baseline)
    for a, b in zip(first, second, strict=True):
        assert (a is None) is (b is None) and (a or 0.0) == pytest.approx(b or 0.0), f"{first} became {second}"


def test_a_greedy_reward_is_clipped_like_the_rewards_that_it_is_compared_with() -> None:
    config = AdvantageConfig(baseline="greedy", scale="none", reward_max=1.0)
    group = RewardGroup((2.0, 1.5), greedy_reward=3.0)
    assert completion_advantages(config, [group]) == [[0.0, 0.0]]
    assert not has_signal(config, group)


def test_a_verifier_without_weight_gives_no_signal() -> None:
    config = AdvantageConfig(per_verifier=True)
    parts = ((1.0, 1.0), (1.0, 0.0))
    assert not has_signal(config, RewardGroup((1.0, 1.0), parts, part_weights=(1.0, 0.0)))
    assert has_signal(config, RewardGroup((1.0, 1.0), parts, part_weights=(1.0, 0.5)))


def test_equal_verdicts_of_a_group_may_differ_from_the_batchs_mean() -> None:
    config = AdvantageConfig(per_verifier=True, baseline="batch_mean", scale="none")
    group, other = (RewardGroup((value,) * 2, ((value,),) * 2, part_weights=(1.0,)) for value in (1.0, 0.0))
    assert completion_advantages(config, [group, other]) == [[0.5, 0.5], [-0.5, -0.5]]
    assert has_signal(config, group)


@pytest.mark.parametrize("scale", ["group_std", "leave_one_out_std", "batch_std", "nonzero_share", "none"])
def test_the_largest_reward_has_an_advantage_with_every_scale(scale: str) -> None:
    values = advantages([MAX_REWARD, -MAX_REWARD, 0.0, 1.0], scale=scale)
    assert all(value is not None and math.isfinite(value) for value in values), values
