"""Reward parts for length and repetition."""

import math
from collections.abc import Collection, Sequence

from services.reward.verifiers.repetition_penalty import repetition_penalty
from services.reward.verifiers.soft_overlong import soft_overlong_punishment
from shoal.config.services import RewardConfig
from shoal.rollout import RewardPart


def shaping_parts(
    config: RewardConfig,
    token_ids: Sequence[int],
    *,
    correct: bool,
    length_limit_tokens: int,
    verifiers: Collection[str] = (),
) -> list[RewardPart]:
    """Returns the parts that are enabled.

    `length_limit_tokens` is the limit of those that do not set one; `verifiers` are those that scored the completion.
    """
    parts = []
    num_tokens = len(token_ids)
    overlong, length, cosine, repetition = config.overlong, config.length, config.cosine, config.repetition
    if overlong.factor:
        limit = overlong.max_length_tokens or length_limit_tokens
        punishment = soft_overlong_punishment(num_tokens, limit, overlong.buffer_tokens)
        parts.append(RewardPart("overlong", overlong.factor * punishment))
    if length.coef:
        share = min(num_tokens / (length.max_length_tokens or length_limit_tokens), 1.0)
        parts.append(RewardPart("length", -length.coef * share if correct or not length.only_correct else 0.0))
    if cosine.factor:
        value = cosine_scaled_length(
            correct,
            num_tokens,
            max_length_tokens=cosine.max_length_tokens or length_limit_tokens,
            correct_range=(cosine.correct_long, cosine.correct_short),
            wrong_range=(cosine.wrong_short, cosine.wrong_long),
        )
        parts.append(RewardPart("cosine", cosine.factor * value))
    if repetition.max_penalty:
        applies = not repetition.verifiers or any(name in repetition.verifiers for name in verifiers)
        penalty = repetition_penalty(token_ids, repetition.ngram_size, repetition.max_penalty)
        parts.append(RewardPart("repetition", penalty if applies else 0.0))
    return parts


def reads_tokens(config: RewardConfig) -> bool:
    """Returns whether a part is enabled that reads a completion's tokens."""
    return any((config.overlong.factor, config.length.coef, config.cosine.factor, config.repetition.max_penalty))


def cosine_scaled_length(
    correct: bool,
    num_tokens: int,
    *,
    max_length_tokens: int,
    correct_range: tuple[float, float] = (0.5, 1.0),
    wrong_range: tuple[float, float] = (-1.0, -0.5),
) -> float:
    """Returns a reward that favors short correct answers and long wrong ones (arXiv:2502.03373, section 4).

    A correct answer gets the upper end of `correct_range` at length 0 and its lower end from `max_length_tokens` on; a
    wrong one gets the lower end of `wrong_range` at length 0 and its upper end from `max_length_tokens` on. In between
    the value follows half a period of the cosine.
    """
    at_start, at_limit = reversed(correct_range) if correct else wrong_range
    share = (1 + math.cos(math.pi * min(num_tokens / max_length_tokens, 1.0))) / 2
    return at_limit + (at_start - at_limit) * share
