"""Scores as messages."""

from shoal.scores import RewardPart, Score, ScoreOutcome, StepScore, VerifierScore
from shoal.wire import score_from_wire, score_to_wire


def test_a_score_is_read_back_with_the_scores_of_its_steps() -> None:
    steps = (StepScore(7, 0.25), StepScore(19, 1.0))
    part = VerifierScore("process", ScoreOutcome.SCORED, 0.5, "two steps", 0.1, steps, "3fa2")
    score = Score(3, ScoreOutcome.SCORED, 0.5, (part,), (RewardPart("verifiable", 1.5), RewardPart("overlong", -1.0)))
    assert score_from_wire(score_to_wire(score)) == score
