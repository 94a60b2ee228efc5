"""The groups of a ledger as messages, a page at a time."""

import json
import sqlite3
from collections import Counter
from pathlib import Path

from services.coordinator.store.reading import interpreting, reading
from services.coordinator.store.rollout_page import Page
from services.coordinator.store.rollout_query import RolloutQuery
from services.coordinator.store.segments.records import PayloadKind, messages_of
from services.coordinator.store.segments.series import SEGMENTS
from services.coordinator.store.tables.blocks import WholeLedger
from services.coordinator.store.tables.payloads import read_payload
from shoal.errors import DataLoss, NotFound
from shoal.rollout import FinishReason, WeightVersion
from shoal.scores import RewardPart, Score, ScoreOutcome, StepScore, VerifierScore
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2
from shoal.wire import finish_reason_to_wire, score_to_wire, version_to_wire
from shoal.wire.paging import page_size

LEDGER = "ledger.sqlite"


def count_groups(folder: Path) -> dict[str, int]:
    """Counts the groups of a run's folder by state. Returns no counts if there is no ledger yet."""
    counts = Counter[str]()
    for state, _, count in _counts(folder):
        counts[state] += count
    return counts


def count_drop_reasons(folder: Path) -> dict[str, int]:
    """Counts the dropped groups of a run's folder by reason. Returns no counts if there is no ledger yet."""
    counts = Counter[str]()
    for state, reason, count in _counts(folder):
        if state == "DROPPED":
            counts[reason] += count
    return counts


def _counts(folder: Path) -> list[tuple[str, str, int]]:
    with reading(folder / LEDGER) as connection, interpreting(folder / LEDGER):
        return [] if connection is None else list(WholeLedger(connection, folder / SEGMENTS).counts())


def whole_ledger(folder: Path) -> sqlite3.Connection:
    """Copies the ledger of a run's folder, including used-up groups, to a database in memory for SQL queries.

    Raises `NotFound` if there is no ledger yet, and the errors of `reading`.
    """
    with reading(folder / LEDGER) as connection, interpreting(folder / LEDGER):
        if connection is None:
            raise NotFound(f"{folder} has no ledger: give the folder of a run that has begun")
        return WholeLedger(connection, folder / SEGMENTS).merged()


def list_rollouts(folder: Path, request: pb.ListRolloutsRequest) -> pb.ListRolloutsResponse:
    """Answers `ListRollouts` from a run's folder. Raises `InvalidArgument`, and the errors of `reading`."""
    size = page_size(request.page_size, default=20, largest=100)
    response = pb.ListRolloutsResponse()
    with reading(folder / LEDGER) as connection:
        if connection is None:
            return response
        ledger = WholeLedger(connection, folder / SEGMENTS)
        with interpreting(folder / LEDGER):
            query = RolloutQuery(ledger, request)
            places = query.places(size + 1)
        page = Page(response)
        num_listed = query.num_listed
        for index, place in enumerate(places):
            rest: int | None = 0
            if index < size:
                with interpreting(folder / LEDGER):
                    part = ledger.part_of(place.order_number)
                    group = _group(part, place.order_number)
                    _add_payloads(group, part, folder / SEGMENTS)
                rest = page.add(group, num_listed)
            if rest is not None:
                response.next_page_token = query.token(place, rest)
                break
            num_listed = 0
    return response


def _group(connection: sqlite3.Connection, order_number: int) -> pb.RolloutGroup:
    """Reads one group with its completions, without the data in segments."""
    group = connection.execute(
        "SELECT group_id, prompt_id, prompt_text, trace_id, state, drop_reason, train_step, staleness FROM groups"
        " WHERE order_number = ?",
        (order_number,),
    )
    group_id, prompt_id, prompt_text, trace_id, state, drop_reason, train_step, staleness = group.fetchone()
    completions = connection.execute(
        "SELECT sample_index, text, num_tokens, finish_reason, version_spans, outcome, reward, verifier_scores,"
        " reward_parts, advantage FROM completions WHERE order_number = ? ORDER BY sample_index",
        (order_number,),
    )
    return pb.RolloutGroup(
        group_id=group_id,
        order_number=order_number,
        prompt_id=prompt_id,
        prompt_text=prompt_text,
        state=state,
        drop_reason=drop_reason,
        train_step=train_step,
        staleness=staleness,
        trace_id=trace_id,
        rollouts=[_rollout(*fields) for fields in completions],
    )


def _add_payloads(group: pb.RolloutGroup, connection: sqlite3.Connection, segments: Path) -> None:
    """Adds texts and verdicts to a group. If a segment is lost or damaged, the texts state this instead."""
    rollouts = {rollout.sample_index: rollout for rollout in group.rollouts}

    def read(kind: PayloadKind) -> bytes:
        return read_payload(connection, segments, group.order_number, kind) or b""

    try:
        for prompt in messages_of(read(PayloadKind.PROMPT), rollout_pb2.Prompt):
            group.prompt_text = prompt.text
        for completion in messages_of(read(PayloadKind.TEXTS), rollout_pb2.Completion):
            rollouts[completion.sample_index].text = completion.text
            if completion.HasField("episode"):
                rollouts[completion.sample_index].episode.CopyFrom(completion.episode)
        for score in messages_of(read(PayloadKind.SCORES), rollout_pb2.Score):
            rollouts[score.sample_index].score.verifier_scores.extend(score.verifier_scores)
    except DataLoss as error:
        lost = f"[lost: {error.message}]"
        group.prompt_text = group.prompt_text or lost
        for rollout in group.rollouts:
            rollout.text = rollout.text or lost


def _rollout(
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
) -> pb.Rollout:
    score = outcome and Score(
        sample_index=sample_index,
        outcome=ScoreOutcome(outcome),
        reward=reward or 0.0,
        verifier_scores=tuple(
            VerifierScore(
                name, ScoreOutcome(part), value, detail, duration_s, tuple(StepScore(*step) for step in steps), *digest
            )
            # Groups of older ledgers have their verdicts here, some of them without a digest.
            for name, part, value, detail, duration_s, steps, *digest in json.loads(verifier_scores or "[]")
        ),
        parts=tuple(RewardPart(name, value) for name, value in json.loads(reward_parts or "[]")),
    )
    return pb.Rollout(
        sample_index=sample_index,
        text=text,
        num_tokens=num_tokens,
        finish_reason=finish_reason_to_wire(FinishReason(finish_reason)),
        score=score_to_wire(score) if score else None,
        advantage=advantage,
        version_spans=[
            rollout_pb2.VersionSpan(version=version_to_wire(WeightVersion.parse(version)), start=start, end=end)
            for version, start, end in json.loads(version_spans)
        ],
    )
