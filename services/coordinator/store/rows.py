"""Rows of the ledger: groups and completions in the form in which they are written."""

import json
from dataclasses import dataclass
from enum import StrEnum

from shoal.rollout import Completion, Rollout
from shoal.scores import Score, ScoreOutcome


class GroupState(StrEnum):
    """The state of a group."""

    ISSUED = "ISSUED"
    SAMPLED = "SAMPLED"
    SCORED = "SCORED"
    TRAINED = "TRAINED"
    DROPPED = "DROPPED"


@dataclass(frozen=True)
class TrainedGroup:
    """A group that a step trained on, as it is written to the ledger."""

    order_number: int
    staleness: int
    """Number of train steps between the oldest weights that sampled a token and the weights that were trained."""
    rollouts: tuple[Rollout, ...]
    """The completions that were trained on, with the rewards, advantages and weights that the learner received."""


def sampled_row(order_number: int, completion: Completion) -> tuple[object, ...]:
    """Returns the columns of a sampled completion, in the order of the ledger's INSERT."""
    return (
        order_number,
        completion.sample_index,
        completion.num_tokens,
        completion.finish_reason.value,
        completion.seed,
        json.dumps([[str(span.version), span.start, span.end] for span in completion.version_spans]),
    )


def scored_row(order_number: int, score: Score) -> tuple[object, ...]:
    """Returns the columns that a score sets, in the order of the ledger's UPDATE."""
    return (
        score.outcome.value,
        score.reward if score.outcome is ScoreOutcome.SCORED else None,
        json.dumps([[part.name, part.value] for part in score.parts]),
        order_number,
        score.sample_index,
    )


def trained_row(order_number: int, rollout: Rollout) -> tuple[object, ...]:
    """Returns the columns that training sets, in the order of the ledger's UPDATE."""
    return rollout.reward, rollout.advantage, rollout.weight, order_number, rollout.completion.sample_index
