"""Groups as the ledger has them, for people and for what goes on from there."""

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from shoal.rollout import (
    FinishReason,
    RewardPart,
    Score,
    ScoreOutcome,
    StepScore,
    VerifierScore,
    VersionSpan,
    WeightVersion,
)


class GroupState(StrEnum):
    """Where a group stands."""

    ISSUED = "ISSUED"
    SAMPLED = "SAMPLED"
    SCORED = "SCORED"
    TRAINED = "TRAINED"
    DROPPED = "DROPPED"


@dataclass(frozen=True)
class RecordedGroup:
    """A group as the ledger has it."""

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
    """A completion as the ledger has it."""

    sample_index: int
    text: str
    num_tokens: int
    finish_reason: FinishReason
    version_spans: tuple[VersionSpan, ...]
    score: Score | None
    advantage: float | None


def read_groups(connection: sqlite3.Connection, first: int, limit: int) -> Iterable[RecordedGroup]:
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
            # Runs from before there was a digest go on as well.
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
