"""Rewards at single tokens, from the scores of a completion's steps, at the tokens that end the steps."""

from collections.abc import Callable
from dataclasses import dataclass

from shoal.rollout import Completion, Prompt
from shoal.scores import Score, ScoreOutcome


@dataclass(frozen=True)
class TokenReward:
    """A reward at one token of a completion."""

    token: int
    """Index of the last token of the step."""
    value: float


def token_rewards(
    prompt: Prompt, completion: Completion, score: Score, text_of: Callable[[list[int]], str]
) -> tuple[TokenReward, ...]:
    """Returns the scores of the steps, times their verifiers' weights, at the tokens that complete the steps.

    `text_of` decodes tokens to the text that verifiers see, which for an episode is its last turn. A step beyond the
    text ends with the last token.
    """
    turns = () if completion.episode is None else completion.episode.turns_in_time
    first, end = (turns[-1].start, turns[-1].end) if turns else (0, completion.num_tokens)
    token_ids = completion.token_ids[first:end].tolist()
    if not token_ids:
        return ()
    return tuple(
        TokenReward(first + _last_token(token_ids, step.end_char, text_of), truth.weight * step.value)
        for truth, part in zip(prompt.ground_truths, score.verifier_scores, strict=True)
        for step in part.step_scores
    )


def turn_rewards(completion: Completion) -> tuple[TokenReward, ...]:
    """Returns the rewards of an episode's turns, at the last tokens that the policy sampled in them."""
    if completion.episode is None or completion.episode.outcome is not ScoreOutcome.SCORED:
        return ()
    turns = completion.episode.turns
    return tuple(
        TokenReward(turn.end - 1, turn.reward) for turn in turns if turn.reward is not None and turn.end > turn.start
    )


def _last_token(token_ids: list[int], end_char: int, text_of: Callable[[list[int]], str]) -> int:
    """Bisects for the first token up to which the text is long enough.

    Tokens do not reveal which characters they stand for, so each halving decodes once.
    """
    low, high = 0, len(token_ids) - 1
    while low < high:
        middle = (low + high) // 2
        if len(text_of(token_ids[: middle + 1])) >= end_char:
            high = middle
        else:
            low = middle + 1
    return low
