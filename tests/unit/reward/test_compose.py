"""From verdicts to a reward."""

import pytest

from services.reward.compose import compose_score
from shoal.rollout import GroundTruth, ScoreOutcome, VerifierScore

SCORED, UNSCORABLE, FAILED = ScoreOutcome.SCORED, ScoreOutcome.UNSCORABLE, ScoreOutcome.FAILED


def test_the_reward_is_the_weighted_sum_of_the_values() -> None:
    truths = [GroundTruth("a", None, 10.0), GroundTruth("b", None, -0.5)]
    score = compose_score(3, truths, [VerifierScore("a", SCORED, 1.0), VerifierScore("b", SCORED, 0.5)])
    assert (score.sample_index, score.outcome, score.reward) == (3, SCORED, 9.75)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([SCORED, UNSCORABLE], UNSCORABLE),
        ([FAILED, UNSCORABLE], FAILED),
        ([UNSCORABLE, FAILED], FAILED),
        ([FAILED, SCORED], FAILED),
    ],
)
def test_the_outcome_is_the_worst_of_the_verifiers(outcomes: list[ScoreOutcome], expected: ScoreOutcome) -> None:
    parts = [VerifierScore("v", outcome, 1.0) for outcome in outcomes]
    score = compose_score(0, [GroundTruth("v", None)] * len(parts), parts)
    assert (score.outcome, score.reward) == (expected, 0.0)
