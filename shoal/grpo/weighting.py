"""Weights of completions in the loss, as in ROLL: harder prompts and shorter answers have larger weights."""

from collections.abc import Sequence


def difficulty_weights(correct_shares: Sequence[float]) -> list[float]:
    """Computes `0.5 + 1.5 x (1 - share of the group's completions that are correct)`, rescaled to mean 1."""
    return _to_mean_1([0.5 + 1.5 * (1 - share) for share in correct_shares])


def length_weights(num_tokens: Sequence[int]) -> list[float]:
    """Computes `1.5 - n`, rescaled to mean 1, where n is the completion's length mapped to [0, 1] over the batch.

    All weights are 1 if all lengths are equal.
    """
    shortest, longest = min(num_tokens, default=0), max(num_tokens, default=0)
    if shortest == longest:
        return [1.0] * len(num_tokens)
    return _to_mean_1([1.5 - (n - shortest) / (longest - shortest) for n in num_tokens])


def _to_mean_1(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight * len(weights) / total for weight in weights]
