from itertools import combinations
from statistics import fmean

import pytest

from shoal.grpo.pass_at_k import pass_at_k, pass_shares


def test_pass_at_k_is_the_share_of_all_draws_of_k_with_a_correct_answer() -> None:
    answers = [[True, False, False, True, False], [False] * 5, [False, False, True, False, False]]
    rates = pass_at_k(answers)
    assert list(rates) == [1, 2, 4, 5]
    for k, rate in rates.items():
        drawn = fmean(fmean(any(draw) for draw in combinations(one, k)) for one in answers)
        assert rate == pytest.approx(drawn, abs=1e-12), f"pass@{k}: {rate}, counted {drawn}"


def test_a_question_with_fewer_answers_counts_for_the_k_that_it_has() -> None:
    rates = pass_at_k([[True, False, False, False], [True]])
    assert rates == {1: pytest.approx((0.25 + 1) / 2), 2: pytest.approx(0.5), 4: pytest.approx(1.0)}


def test_without_answers_there_is_no_rate() -> None:
    assert pass_at_k([]) == {} == pass_at_k([[], []])
    assert pass_at_k([[], [True]]) == {1: 1.0}


def test_many_answers_lose_no_digits() -> None:
    # 1 - C(9999, 4096) / C(10000, 4096) = 4096 / 10000, of two numbers with thousands of digits.
    assert pass_at_k([[True] + [False] * 9999])[4096] == pytest.approx(0.4096, abs=1e-12)


def test_only_the_k_that_are_asked_for_and_that_answers_allow_are_estimated() -> None:
    answers = [[True, False, False, True, False], [False] * 5]
    rates = pass_at_k(answers, [3, 1, 8])
    assert list(rates) == [1, 3], rates
    assert rates[3] == pytest.approx((1 - 1 / 10) / 2), "1 - C(3, 3) / C(5, 3), and 0"
    assert {k: fmean(shares) for k, shares in pass_shares(answers, [3, 1, 8]).items()} == rates
