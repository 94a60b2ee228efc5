"""95 % confidence intervals of a share of correct answers, of the change of a rate, and of a mean reward."""

from collections.abc import Sequence
from math import exp, fsum, log, sqrt
from statistics import fmean
from typing import NamedTuple

_Z = 1.959963984540054
"""The number of standard deviations that contain 95 % of a normal distribution."""
MIN_REWARDS = 6
"""The fewest questions for which a mean reward has an interval."""
_MAX_LOG_SHIFT = 30.0
_BISECTIONS = 50


class Interval(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float


def rate_interval(correct: Sequence[Sequence[bool]]) -> Interval:
    """Computes the Wilson score interval of the share of correct answers, over all answers.

    `correct[i][j]` is whether answer j to question i is correct. The questions are the sample. Answers to one question
    tend to agree, so they count as fewer draws: as many as explain the variance of the share over questions (the design
    effect of cluster sampling). With one answer per question this is Wilson's interval itself (Newcombe 1998,
    doi:10.1002/(SICI)1097-0258(19980430)17:8<857::AID-SIM777>3.0.CO;2-E). Without answers the interval is (0, 1).
    """
    answered = [answers for answers in correct if answers]
    num_answers = sum(map(len, answered))
    if not num_answers:
        return Interval(0.0, 1.0)
    rate = sum(map(sum, answered)) / num_answers
    return _wilson(rate, _num_draws(answered, rate, num_answers))


def mean_interval(shares: Sequence[float]) -> Interval:
    """Computes an interval of the mean of shares, one share per question, each from 0 to 1.

    Returns Wilson's interval for as many draws as explain the variance of the mean over questions, but at least one per
    question, since a pass@k from many answers varies less than a single draw. Without shares the interval is (0, 1).
    """
    if not shares:
        return Interval(0.0, 1.0)
    num, mean = len(shares), fmean(shares)
    variance = sum((share - mean) ** 2 for share in shares) / (max(1, num - 1) * num)
    return _wilson(mean, max(num, mean * (1 - mean) / variance) if variance else num)


def reward_interval(rewards: Sequence[float]) -> Interval | None:
    """Computes the interval of a mean reward by empirical likelihood, from the mean reward of each question.

    The interval contains the means of all weightings of these rewards whose likelihood ratio reaches Student's quantile
    (Owen 1988, doi:10.1093/biomet/75.2.237, with the F calibration). So the interval lies between the smallest and the
    largest reward, and thus within the possible range of rewards, which only verifiers and environments know. The
    interval is as skewed as the rewards.

    Returns None for fewer than `MIN_REWARDS` questions, since the true mean is often outside the range of so few
    rewards. Also returns None for equal rewards, which show no spread.
    """
    if len(rewards) < MIN_REWARDS or min(rewards) == max(rewards):
        return None
    # Student's quantile from the normal one, within 0.1 % from 6 questions on (Abramowitz and Stegun, 26.7.5).
    freedom = len(rewards) - 1
    t = _Z + (_Z**3 + _Z) / (4 * freedom) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * freedom**2)
    t += (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / (384 * freedom**3)
    return Interval(_lowest_mean(rewards, t**2), -_lowest_mean([-reward for reward in rewards], t**2))


def _lowest_mean(values: Sequence[float], bound: float) -> float:
    """Returns the lowest mean of weighted values if -2 log(likelihood ratio) of the weights is at most `bound`.

    For a mean below the plain mean, the likeliest weights are proportional to 1 / (value + shift). The smaller the
    shift, the lower the mean. The logarithm of the shift, over the spread of the values, is bisected.
    """
    smallest, spread = min(values), max(values) - min(values)
    mean, low, high = smallest, -_MAX_LOG_SHIFT, _MAX_LOG_SHIFT
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        weights = [1 / ((value - smallest) / spread + exp(middle)) for value in values]
        total = fsum(weights)
        if -2 * fsum(log(len(values) * weight / total) for weight in weights) > bound:
            low = middle
        else:
            high = middle
            mean = fsum(weight * value for weight, value in zip(weights, values, strict=True)) / total
    return mean


def _wilson(rate: float, num_draws: float) -> Interval:
    center = rate + _Z**2 / (2 * num_draws)
    half = _Z * sqrt(rate * (1 - rate) / num_draws + _Z**2 / (4 * num_draws**2))
    scale = 1 + _Z**2 / num_draws
    return Interval(max(0.0, (center - half) / scale), min(1.0, (center + half) / scale))


def _num_draws(answered: Sequence[Sequence[bool]], rate: float, num_answers: int) -> float:
    """Returns how many independent answers would vary as much as these: from one per question to all answers."""
    num_questions = len(answered)
    residuals = fmean((sum(answers) - rate * len(answers)) ** 2 for answers in answered)
    if not residuals:
        return num_questions if rate in (0, 1) else num_answers
    variance = residuals * num_questions**2 / (max(1, num_questions - 1) * num_answers**2)
    return min(num_answers, max(num_questions, rate * (1 - rate) / variance))


def change_interval(changes: Sequence[float]) -> Interval:
    """Computes an interval of the mean change of a rate, from the change of each question between two evaluations.

    The change of a question is from -1 to 1. Pairing leaves the difficulty of the questions out, so the interval is
    narrower than an interval from two separate rates. To keep the interval valid for few questions, half a question
    that improved, half a question that got worse and one unchanged question are added (Agresti and Min 2005,
    doi:10.1002/sim.1781). Without questions the interval is (-1, 1).
    """
    if not changes:
        return Interval(-1.0, 1.0)
    num = len(changes) + 2
    mean = sum(changes) / num
    variance = (sum(change**2 for change in changes) + 1) / num - mean**2
    half = _Z * sqrt(variance / num)
    return Interval(max(-1.0, mean - half), min(1.0, mean + half))
