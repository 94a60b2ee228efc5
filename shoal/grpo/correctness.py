"""Whether a completion is correct, by the verifiers that say so (`reward.correct`).

Rewards, drop rules, metrics and evaluations all ask here.
"""

from collections.abc import Iterable, Sequence

from shoal.config.tables.reward import RewardConfig
from shoal.scores import Score, VerifierScore

CORRECT = 1.0
"""The smallest value by which a verifier calls a completion correct."""


def deciding_values(
    reward: RewardConfig, parts: Iterable[VerifierScore], environment: float | None
) -> tuple[float, ...]:
    """Returns the values that decide whether a completion is correct: those of the verifiers that say so, or else the
    reward of its environment; none where nobody says it."""
    values = tuple(part.value for part in parts if reward.says_correct(part.verifier))
    return values or (() if environment is None else (environment,))


def verdict(values: Sequence[float]) -> bool | None:
    """Returns whether all deciding values say "correct"; None without any."""
    return all(value >= CORRECT for value in values) if values else None


def is_correct(reward: RewardConfig, score: Score) -> bool | None:
    """Returns whether a scored completion is correct; None where neither a verifier nor an environment says so."""
    return verdict(deciding_values(reward, score.verifier_scores, environment_reward(score)))


def environment_reward(score: Score) -> float | None:
    """Returns what an environment paid, which is the whole reward where neither parts nor verifiers are known; None
    without an environment."""
    paid = next((part.value for part in score.parts if part.name == "environment"), None)
    return score.reward if paid is None and not score.verifier_scores else paid
