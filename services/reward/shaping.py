"""Rewards that depend on the length of a completion whose correctness is known."""

import math


def cosine_scaled_length(
    correct: bool,
    num_tokens: int,
    *,
    max_length_tokens: int,
    correct_range: tuple[float, float] = (0.5, 1.0),
    wrong_range: tuple[float, float] = (-1.0, -0.5),
) -> float:
    """A reward that favors short right answers and long wrong ones (arXiv:2502.03373, section 4).

    A right answer gets the upper end of `correct_range` at length 0 and its lower end from `max_length_tokens`; a
    wrong one the lower end of `wrong_range` at length 0 and its upper end from there. In between it follows half a
    period of the cosine.
    """
    at_start, at_limit = reversed(correct_range) if correct else wrong_range
    share = (1 + math.cos(math.pi * min(num_tokens / max_length_tokens, 1.0))) / 2
    return at_limit + (at_start - at_limit) * share
