import random
from math import comb, log

import pytest

from shoal.grpo.intervals import change_interval, mean_interval, rate_interval, reward_interval


def single(num_correct: int, num: int) -> list[list[bool]]:
    return [[index < num_correct] for index in range(num)]


@pytest.mark.parametrize(
    ("num_correct", "num", "low", "high"),
    # Newcombe 1998, table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_one_answer_a_question_gives_the_published_wilson_interval(
    num_correct: int, num: int, low: float, high: float
) -> None:
    assert rate_interval(single(num_correct, num)) == pytest.approx((low, high), abs=5e-5)


def test_answers_that_always_agree_count_as_one() -> None:
    once = single(12, 40)
    copied = [answers * 8 for answers in once]
    assert rate_interval(copied) == pytest.approx(rate_interval(once))


def test_answers_that_are_independent_count_as_many() -> None:
    random.seed(3)
    answers = [[random.random() < 0.4 for _ in range(8)] for _ in range(400)]
    low, high = rate_interval(answers)
    one_low, one_high = rate_interval(single(1280, 3200))
    assert high - low == pytest.approx(one_high - one_low, rel=0.15), (high - low, one_high - one_low)


def test_without_answers_nothing_is_known() -> None:
    assert rate_interval([]) == (0.0, 1.0) == rate_interval([[], []])
    assert change_interval([]) == (-1.0, 1.0)


def test_a_rate_of_zero_or_one_still_has_an_interval() -> None:
    assert rate_interval([[True] * 4] * 5) == pytest.approx(rate_interval(single(5, 5)))
    assert rate_interval(single(5, 5)).low == pytest.approx(0.5655, abs=1e-4)


def test_a_gain_of_three_questions_of_twenty_is_within_noise() -> None:
    # By hand: mean 3 / 22, variance (4 / 22 - (3 / 22)^2) / 22 = 0.00742, so 0.1364 -+ 1.96 x 0.0861.
    assert change_interval([1.0] * 3 + [0.0] * 17) == pytest.approx((-0.0325, 0.3052), abs=1e-4)


def test_the_interval_of_a_change_covers_the_truth_in_about_95_of_100_evaluations() -> None:
    # Exact: 30 questions, of which each gets better with probability 0.2 and worse with 0.1.
    num, better, worse, covered = 30, 0.2, 0.1, 0.0
    for up in range(num + 1):
        for down in range(num + 1 - up):
            same = num - up - down
            ways = comb(num, up) * comb(num - up, down)
            interval = change_interval([1.0] * up + [-1.0] * down + [0.0] * same)
            if interval.low <= better - worse <= interval.high:
                covered += ways * better**up * worse**down * (1 - better - worse) ** same
    assert 0.93 < covered < 0.975, f"covered {covered:.4f}"


@pytest.mark.parametrize(("num_right", "num"), [(8, 10), (39, 40), (1, 6), (3, 30)])
def test_the_interval_of_rewards_of_0_and_1_is_that_of_the_binomial_likelihood_ratio(num_right: int, num: int) -> None:
    t_squared = {6: 2.5706**2, 10: 2.2622**2, 30: 2.0452**2, 40: 2.0227**2}[num]  # Of Student's table, 97.5 %.
    rate, interval = num_right / num, reward_interval([1.0] * num_right + [0.0] * (num - num_right))
    assert interval is not None and 0 < interval.low < rate < interval.high < 1, interval
    for end in interval:
        ratio = num_right * log(rate / end) + (num - num_right) * log((1 - rate) / (1 - end))
        assert 2 * ratio == pytest.approx(t_squared, rel=5e-3), (end, 2 * ratio)


def test_the_interval_of_a_mean_reward_moves_with_the_rewards() -> None:
    rewards = [0.25, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 0.25]
    interval = reward_interval(rewards)
    assert interval is not None and 0.25 < interval.low < sum(rewards) / 8 < interval.high < 1.0, interval
    moved = reward_interval([3 - 2 * reward for reward in rewards])
    assert moved == pytest.approx((3 - 2 * interval.high, 3 - 2 * interval.low))


def test_few_and_equal_rewards_have_no_interval() -> None:
    assert reward_interval([]) is None
    assert reward_interval([0.0, 1.0, 0.0, 1.0, 0.0]) is None
    assert reward_interval([0.5] * 40) is None


def test_the_interval_of_a_mean_reward_covers_the_truth_in_about_95_of_100_evaluations() -> None:
    random.seed(5)
    covered = 0
    for _ in range(1000):  # Half of the questions pay 1, the others anything from 0 to 1: the mean is 0.75.
        interval = reward_interval([max(random.random(), random.choice((0.0, 1.0))) for _ in range(20)])
        covered += interval is not None and interval.low <= 0.75 <= interval.high
    assert 930 <= covered <= 970, covered


def test_shares_that_are_0_or_1_give_the_interval_of_single_answers() -> None:
    # The variance is the sample's, with n - 1: that of Wilson's interval at the edge of its tolerance.
    got, want = mean_interval([1.0] * 12 + [0.0] * 28), rate_interval(single(12, 40))
    assert got == pytest.approx(want), (got, want)


def test_the_less_questions_differ_the_narrower_is_the_interval_of_their_mean() -> None:
    widths = []
    for spread in (0.5, 0.25, 0.1):
        low, high = mean_interval([0.5 - spread, 0.5 + spread] * 20)
        assert low < 0.5 < high, (spread, low, high)
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True) and widths[2] < widths[0] / 4, widths


def test_equal_shares_have_the_interval_of_one_draw_a_question() -> None:
    assert mean_interval([0.5] * 10) == pytest.approx(rate_interval(single(5, 10)))
    assert mean_interval([1.0] * 5) == pytest.approx(rate_interval(single(5, 5)))
    assert mean_interval([]) == (0.0, 1.0)
