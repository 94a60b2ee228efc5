"""pass@k: the probability that one of k answers to a question is correct."""

from collections.abc import Sequence
from math import comb
from statistics import fmean


def pass_at_k(correct: Sequence[Sequence[bool]]) -> dict[int, float]:
    """Estimates pass@k, unbiased, for k = 1, 2, 4, ... and for the largest number of answers to a question.

    `correct[i][j]` is whether answer j to question i is correct; questions may have different numbers of answers. With
    c of a question's n answers correct, the probability that k answers drawn without replacement include a correct one
    is 1 - C(n - c, k) / C(n, k) (arXiv:2107.03374, equation 1). The mean is over the questions with at least k answers,
    so the largest k may cover fewer questions than the others. The result is empty when no question has an answer.
    """
    largest = max((len(answers) for answers in correct), default=0)
    powers = [2**exponent for exponent in range(largest.bit_length())]
    return {
        k: fmean(_one(len(answers), sum(answers), k) for answers in correct if len(answers) >= k)
        for k in sorted({*powers, largest} - {0})
    }


def _one(num_answers: int, num_correct: int, k: int) -> float:
    # Integers of any size: exact until the one division.
    return 1.0 - comb(num_answers - num_correct, k) / comb(num_answers, k)
