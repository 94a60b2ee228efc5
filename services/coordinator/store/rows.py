"""Rows of the ledger: groups and completions, written and read back."""

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from shoal.rollout import (
    Completion,
    FinishReason,
    RewardPart,
    Rollout,
    Score,
    ScoreOutcome,
    StepScore,
    VerifierScore,
    VersionSpan,
    WeightVersion,
)
from shoal.wire.arrays import float32_to_wire, int32_to_wire


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
    """Train steps between the oldest weights that sampled a token of the group and those that were trained."""
    rollouts: tuple[Rollout, ...]
    """The completions that were trained on, with the rewards, advantages and weights that the learner received."""


@dataclass(frozen=True)
class RecordedGroup:
    """A group as it is read from the ledger."""

    order_number: int
    group_id: str
    prompt_id: str
    prompt_text: str
    trace_id: str
    state: GroupState
    drop_reason: str
    train_step: int
    staleness: int | None
    completions: tuple["RecordedCompletion", ...]


@dataclass(frozen=True)
class RecordedCompletion:
    """A completion as it is read from the ledger."""

    sample_index: int
    text: str
    num_tokens: int
    finish_reason: FinishReason
    version_spans: tuple[VersionSpan, ...]
    score: Score | None
    advantage: float | None


def sampled_row(order_number: int, completion: Completion) -> tuple[object, ...]:
    """The columns of a completion that was sampled, in the order of the ledger's INSERT."""
    return (
        order_number,
        completion.sample_index,
        completion.text,
        completion.num_tokens,
        completion.finish_reason.value,
        completion.seed,
        json.dumps([[str(span.version), span.start, span.end] for span in completion.version_spans]),
        int32_to_wire(completion.token_ids),
        float32_to_wire(completion.behavior_logprobs),
    )


def scored_row(order_number: int, score: Score) -> tuple[object, ...]:
    """The columns that a score sets, in the order of the ledger's UPDATE."""
    verifier_scores = [
        [
            part.verifier,
            part.outcome.value,
            part.value,
            part.detail,
            part.duration_s,
            [[step.end_char, step.value] for step in part.step_scores],
            part.code_digest,
        ]
        for part in score.verifier_scores
    ]
    return (
        score.outcome.value,
        score.reward if score.outcome is ScoreOutcome.SCORED else None,
        json.dumps(verifier_scores),
        json.dumps([[part.name, part.value] for part in score.parts]),
        order_number,
        score.sample_index,
    )


def trained_row(order_number: int, rollout: Rollout) -> tuple[object, ...]:
    """The columns that training sets, in the order of the ledger's UPDATE."""
    return (
        rollout.reward,
        rollout.advantage,
        None if rollout.token_advantages is None else float32_to_wire(rollout.token_advantages),
        rollout.weight,
        order_number,
        rollout.completion.sample_index,
    )


def read_groups(connection: sqlite3.Connection, first: int, limit: int) -> Iterable[RecordedGroup]:
    """Reads up to `limit` groups with their completions, in the order of issue from an order number on."""
    rows = connection.execute(
        "SELECT order_number, group_id, prompt_id, prompt_text, trace_id, state, drop_reason, train_step, staleness"
        " FROM groups WHERE order_number >= ? ORDER BY order_number LIMIT ?",
        (first, limit),
    ).fetchall()
    for row in rows:
        completions = connection.execute(
            "SELECT sample_index, text, num_tokens, finish_reason, version_spans, outcome, reward, verifier_scores,"
            " reward_parts, advantage FROM completions WHERE order_number = ? ORDER BY sample_index",
            (row[0],),
        )
        yield RecordedGroup(
            order_number=row[0],
            group_id=row[1],
            prompt_id=row[2],
            prompt_text=row[3],
            trace_id=row[4],
            state=GroupState(row[5]),
            drop_reason=row[6],
            train_step=row[7],
            staleness=row[8],
            completions=tuple(_read_completion(*fields) for fields in completions),
        )


def _read_completion(
    sample_index: int,
    text: str,
    num_tokens: int,
    finish_reason: str,
    version_spans: str,
    outcome: str | None,
    reward: float | None,
    verifier_scores: str | None,
    reward_parts: str | None,
    advantage: float | None,
) -> RecordedCompletion:
    score = outcome and Score(
        sample_index=sample_index,
        outcome=ScoreOutcome(outcome),
        reward=reward or 0.0,
        verifier_scores=tuple(
            VerifierScore(
                name, ScoreOutcome(part), value, detail, duration_s, tuple(StepScore(*step) for step in steps), *digest
            )
            # Rows from before there was a digest lack it.
            for name, part, value, detail, duration_s, steps, *digest in json.loads(verifier_scores or "[]")
        ),
        parts=tuple(RewardPart(name, value) for name, value in json.loads(reward_parts or "[]")),
    )
    return RecordedCompletion(
        sample_index=sample_index,
        text=text,
        num_tokens=num_tokens,
        finish_reason=FinishReason(finish_reason),
        version_spans=tuple(
            VersionSpan(WeightVersion.parse(version), start, end) for version, start, end in json.loads(version_spans)
        ),
        score=score or None,
        advantage=advantage,
    )
