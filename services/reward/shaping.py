"""Reward parts for style, length and repetition."""

import math
from collections.abc import Collection, Sequence

from services.reward.verifiers.reasoning_steps import reasoning_steps
from services.reward.verifiers.repetition_penalty import repetition_penalty
from services.reward.verifiers.soft_overlong import soft_overlong_punishment
from services.reward.verifiers.think_answer_tags import think_answer_tags
from shoal.config.tables.reward import RewardConfig
from shoal.scores import RewardPart


def shaping_parts(
    config: RewardConfig,
    text: str,
    token_ids: Sequence[int],
    *,
    correct: bool,
    length_limit_tokens: int,
    verifiers: Collection[str] = (),
) -> list[RewardPart]:
    """Returns the parts that are enabled.

    `length_limit_tokens` is the limit of parts that set none; `verifiers` have scored the completion.
    """
    parts = []
    if config.style.tags:
        parts.append(RewardPart("tags", config.style.tags * think_answer_tags(text)))
    if config.style.steps:
        parts.append(RewardPart("steps", config.style.steps * reasoning_steps(text)))
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
            len(text) if cosine.max_length_characters else num_tokens,
            max_length=cosine.max_length_characters or cosine.max_length_tokens or length_limit_tokens,
            correct_range=(cosine.correct_long, cosine.correct_short),
            wrong_range=(cosine.wrong_short, cosine.wrong_long),
        )
        parts.append(RewardPart("cosine", cosine.factor * value))
    if repetition.max_penalty:
        applies = not repetition.verifiers or any(name in repetition.verifiers for name in verifiers)
        units = text.lower().split() if repetition.unit == "words" else token_ids
        penalty = repetition_penalty(units, repetition.ngram_size, repetition.max_penalty)
        parts.append(RewardPart("repetition", penalty if applies else 0.0))
    return parts


def reads_tokens(config: RewardConfig) -> bool:
    """Returns whether a part is enabled that reads a completion's tokens."""
    counts_tokens = config.cosine.factor and not config.cosine.max_length_characters
    repeats_tokens = config.repetition.max_penalty and config.repetition.unit == "tokens"
    return any((config.overlong.factor, config.length.coef, counts_tokens, repeats_tokens))


def cosine_scaled_length(
    correct: bool,
    length: int,
    *,
    max_length: int,
    correct_range: tuple[float, float] = (0.5, 1.0),
    wrong_range: tuple[float, float] = (-1.0, -0.5),
) -> float:
    """Returns a reward that favors short correct answers and long wrong answers (arXiv:2502.03373, section 4).

    A correct answer gets the upper end of `correct_range` at length 0 and its lower end from `max_length` on; a wrong
    answer gets the lower end of `wrong_range` at length 0 and its upper end from `max_length` on. In between the value
    follows half a period of the cosine.
    """
    at_start, at_limit = reversed(correct_range) if correct else wrong_range
    share = (1 + math.cos(math.pi * min(length / max_length, 1.0))) / 2
    return at_limit + (at_start - at_limit) * share
