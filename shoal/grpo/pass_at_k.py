"""pass@k: the probability that one of k answers to a question is correct."""

from collections.abc import Collection, Sequence
from math import comb
from statistics import fmean


def pass_at_k(correct: Sequence[Sequence[bool]], ks: Collection[int] = ()) -> dict[int, float]:
    """Estimates pass@k without bias, for each k. An estimate is the mean of `pass_shares` over the questions."""
    return {k: fmean(shares) for k, shares in pass_shares(correct, ks).items()}


def pass_shares(correct: Sequence[Sequence[bool]], ks: Collection[int] = ()) -> dict[int, list[float]]:
    """Estimates pass@k of each question for each k of `ks`; by default 1, 2, 4, ... and the largest number of answers.

    `correct[i][j]` is whether answer j to question i is correct; questions may have different numbers of answers. With
    c of a question's n answers correct, the probability that k answers drawn without replacement include a correct one
    is 1 - C(n - c, k) / C(n, k) (arXiv:2107.03374, equation 1). Only questions with at least k answers have a pass@k,
    so a large k may cover fewer questions than a small k. The result lacks a k for which no question has a pass@k.
    """
    largest = max((len(answers) for answers in correct), default=0)
    powers = [2**exponent for exponent in range(largest.bit_length())]
    return {
        k: [_one(len(answers), sum(answers), k) for answers in correct if len(answers) >= k]
        for k in sorted(set(ks or (*powers, largest)))
        if 0 < k <= largest
    }


def _one(num_answers: int, num_correct: int, k: int) -> float:
    # Integers of any size: exact until the one division.
    return 1.0 - comb(num_answers - num_correct, k) / comb(num_answers, k)
