"""The correctness of completions, by the verifiers that decide about it (`reward.correct`).

Rewards, drop rules, metrics and evaluations all use this decision.
"""

from collections.abc import Iterable, Sequence

from shoal.config.tables.reward import RewardConfig
from shoal.scores import Score, VerifierScore

CORRECT = 1.0
"""The smallest value of a verifier that means "correct"."""


def deciding_values(
    reward: RewardConfig, parts: Iterable[VerifierScore], environment: float | None
) -> tuple[float, ...]:
    """Returns the values that decide whether a completion is correct: the values of the deciding verifiers, or else the
    reward of the environment. The result is empty if neither decides."""
    values = tuple(part.value for part in parts if reward.says_correct(part.verifier))
    return values or (() if environment is None else (environment,))


def verdict(values: Sequence[float]) -> bool | None:
    """Returns whether all deciding values mean "correct"; None if there are no values."""
    return all(value >= CORRECT for value in values) if values else None


def is_correct(reward: RewardConfig, score: Score) -> bool | None:
    """Returns whether a scored completion is correct; None if neither a verifier nor an environment decides."""
    return verdict(deciding_values(reward, score.verifier_scores, environment_reward(score)))


def environment_reward(score: Score) -> float | None:
    """Returns the part "environment" of a reward. Without this part, returns the whole reward of a score that has no
    verifiers, and None for other scores."""
    paid = next((part.value for part in score.parts if part.name == "environment"), None)
    return score.reward if paid is None and not score.verifier_scores else paid
