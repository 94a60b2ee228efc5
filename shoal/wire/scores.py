"""Scores as messages."""

from shoal.scores import RewardPart, Score, ScoreOutcome, StepScore, VerifierScore
from shoal.v1 import rollout_pb2
from shoal.wire.fields import value_of

_OUTCOME_TO_WIRE = {
    ScoreOutcome.SCORED: rollout_pb2.SCORE_OUTCOME_SCORED,
    ScoreOutcome.UNSCORABLE: rollout_pb2.SCORE_OUTCOME_UNSCORABLE,
    ScoreOutcome.FAILED: rollout_pb2.SCORE_OUTCOME_FAILED,
}
_OUTCOME_FROM_WIRE = {number: outcome for outcome, number in _OUTCOME_TO_WIRE.items()}


outcome_to_wire = _OUTCOME_TO_WIRE.__getitem__


def outcome_from_wire(number: rollout_pb2.ScoreOutcome.ValueType, field: str) -> ScoreOutcome:
    """Reads an outcome. Raises `InvalidArgument`, which names the field, when the outcome is not set or unknown."""
    return value_of(_OUTCOME_FROM_WIRE, number, field)


def score_to_wire(score: Score) -> rollout_pb2.Score:
    return rollout_pb2.Score(
        sample_index=score.sample_index,
        outcome=outcome_to_wire(score.outcome),
        reward=score.reward,
        verifier_scores=[
            rollout_pb2.VerifierScore(
                verifier=part.verifier,
                outcome=outcome_to_wire(part.outcome),
                value=part.value,
                detail=part.detail,
                duration_s=part.duration_s,
                step_scores=[
                    rollout_pb2.StepScore(end_char=step.end_char, value=step.value) for step in part.step_scores
                ],
                code_digest=part.code_digest,
                answer=part.answer,
            )
            for part in score.verifier_scores
        ],
        parts=[rollout_pb2.RewardPart(name=part.name, value=part.value) for part in score.parts],
    )


def score_from_wire(message: rollout_pb2.Score) -> Score:
    return Score(
        sample_index=message.sample_index,
        outcome=outcome_from_wire(message.outcome, "score.outcome"),
        reward=message.reward,
        verifier_scores=tuple(
            VerifierScore(
                verifier=part.verifier,
                outcome=outcome_from_wire(part.outcome, "score.verifier_scores.outcome"),
                value=part.value,
                detail=part.detail,
                duration_s=part.duration_s,
                step_scores=tuple(StepScore(step.end_char, step.value) for step in part.step_scores),
                code_digest=part.code_digest,
                answer=part.answer if part.HasField("answer") else None,
            )
            for part in message.verifier_scores
        ),
        parts=tuple(RewardPart(part.name, part.value) for part in message.parts),
    )
