"""From what each verifier said to the reward of a completion."""

import math
from collections.abc import Sequence

from shoal.rollout import GroundTruth, Score, ScoreOutcome, VerifierScore

_FROM_BEST_TO_WORST = [ScoreOutcome.SCORED, ScoreOutcome.UNSCORABLE, ScoreOutcome.FAILED]


def compose_score(sample_index: int, truths: Sequence[GroundTruth], parts: Sequence[VerifierScore]) -> Score:
    """The weighted sum of the verifiers' values; with the worst of their outcomes.

    `parts` are in the order of `truths`. Unless every verifier scored there is no reward, so it is 0 and means
    nothing.
    """
    outcome = max((part.outcome for part in parts), key=_FROM_BEST_TO_WORST.index)
    reward = 0.0
    if outcome is ScoreOutcome.SCORED:
        reward = math.fsum(truth.weight * part.value for truth, part in zip(truths, parts, strict=True))
    return Score(sample_index, outcome, reward, tuple(parts))
