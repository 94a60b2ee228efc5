"""The ledger: what became of every prompt of a run.

A SQLite database in the run's folder. Each group goes ISSUED -> SAMPLED -> SCORED -> TRAINED, or to DROPPED from
any of the first three; every transition is kept. All of it runs on one thread beside the event loop.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from shoal.errors import DataLoss, ResourceExhausted
from shoal.rollout import (
    Completion,
    FinishReason,
    Prompt,
    Score,
    ScoreOutcome,
    VerifierScore,
    VersionSpan,
    WeightVersion,
)
from shoal.wire import float32_to_wire, int32_to_wire

ResultT = TypeVar("ResultT")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS groups (
    order_number INTEGER PRIMARY KEY,
    group_id TEXT NOT NULL UNIQUE,
    prompt_id TEXT NOT NULL,
    prompt_text TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    state TEXT NOT NULL,
    num_issues INTEGER NOT NULL,
    drop_reason TEXT NOT NULL DEFAULT '',
    train_step INTEGER NOT NULL DEFAULT 0,
    staleness INTEGER
);
CREATE TABLE IF NOT EXISTS completions (
    order_number INTEGER NOT NULL REFERENCES groups,
    sample_index INTEGER NOT NULL,
    text TEXT NOT NULL,
    num_tokens INTEGER NOT NULL,
    finish_reason TEXT NOT NULL,
    seed INTEGER NOT NULL,
    version_spans TEXT NOT NULL,
    token_ids BLOB,
    behavior_logprobs BLOB,
    outcome TEXT,
    reward REAL,
    verifier_scores TEXT,
    advantage REAL,
    PRIMARY KEY (order_number, sample_index)
);
CREATE TABLE IF NOT EXISTS transitions (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    order_number INTEGER NOT NULL REFERENCES groups,
    state TEXT NOT NULL,
    time_s REAL NOT NULL,
    attempt INTEGER NOT NULL,
    policy_version INTEGER NOT NULL,
    detail TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS progress (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 0),
    policy_version INTEGER NOT NULL,
    next_order_number INTEGER NOT NULL,
    num_episodes INTEGER NOT NULL
);
"""


class GroupState(StrEnum):
    """Where a group stands."""

    ISSUED = "ISSUED"
    SAMPLED = "SAMPLED"
    SCORED = "SCORED"
    TRAINED = "TRAINED"
    DROPPED = "DROPPED"


@dataclass(frozen=True)
class Progress:
    """How far the run is, as of its last step boundary."""

    policy_version: int
    next_order_number: int
    """The first group that no step has used up: where issue goes on after a restore."""
    num_episodes: int
    """Completions that steps have used up."""


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


class Ledger:
    """Reads and writes one run's database; every method returns when its transaction is on disk."""

    def __init__(self, path: Path, attempt: int) -> None:
        """Opens or makes the database. Transitions are stamped with `attempt`."""
        self._path = path
        self._attempt = attempt
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> Progress:
        """Opens the database and says how far the run is."""
        return await self._run(self._open)

    def _open(self, _: object) -> Progress:
        connection = sqlite3.connect(self._path, isolation_level="IMMEDIATE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_SCHEMA)
        self._connection = connection
        row = connection.execute("SELECT policy_version, next_order_number, num_episodes FROM progress").fetchone()
        return Progress(*row) if row else Progress(0, 0, 0)

    async def close(self) -> None:
        """Closes the database; the ledger cannot be used any more."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, connection.close)
        self._thread.shutdown()

    async def issued(
        self, order_number: int, group_id: str, prompt: Prompt, trace_id: str, policy_version: int, detail: str
    ) -> None:
        """A prompt was issued, or issued again: what was sampled for it before is forgotten."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO groups (order_number, group_id, prompt_id, prompt_text, trace_id, state, num_issues)"
                " VALUES (?, ?, ?, ?, ?, 'ISSUED', 1) ON CONFLICT (order_number) DO UPDATE SET"
                " state = 'ISSUED', num_issues = num_issues + 1, trace_id = excluded.trace_id",
                (order_number, group_id, prompt.prompt_id, prompt.text, trace_id),
            )
            connection.execute("DELETE FROM completions WHERE order_number = ?", (order_number,))
            self._transition(connection, order_number, GroupState.ISSUED, policy_version, detail)

        await self._run(write)

    async def sampled(
        self, order_number: int, completions: Iterable[Completion], policy_version: int, detail: str
    ) -> None:
        """All completions of a group were sampled."""
        rows = [
            (
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
            for completion in completions
        ]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "INSERT INTO completions (order_number, sample_index, text, num_tokens, finish_reason, seed,"
                " version_spans, token_ids, behavior_logprobs) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            self._move(connection, order_number, GroupState.SAMPLED, policy_version, detail)

        await self._run(write)

    async def scored(self, order_number: int, scores: Iterable[Score], policy_version: int) -> None:
        """All completions of a group were scored."""
        rows = [
            (
                score.outcome.value,
                score.reward if score.outcome is ScoreOutcome.SCORED else None,
                json.dumps(
                    [
                        [part.verifier, part.outcome.value, part.value, part.detail, part.duration_s]
                        for part in score.verifier_scores
                    ]
                ),
                order_number,
                score.sample_index,
            )
            for score in scores
        ]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "UPDATE completions SET outcome = ?, reward = ?, verifier_scores = ?"
                " WHERE order_number = ? AND sample_index = ?",
                rows,
            )
            self._move(connection, order_number, GroupState.SCORED, policy_version, "")

        await self._run(write)

    async def dropped(self, order_number: int, reason: str, policy_version: int) -> None:
        """A group will not be trained on."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE groups SET drop_reason = ? WHERE order_number = ?", (reason, order_number))
            self._move(connection, order_number, GroupState.DROPPED, policy_version, reason)

        await self._run(write)

    async def step_done(
        self,
        *,
        policy_version: int,
        trained: Sequence[tuple[int, int, Sequence[float | None]]],
        dropped: Sequence[tuple[int, str]],
        next_order_number: int,
        num_episodes: int,
    ) -> None:
        """A step is over: one transaction for all that it used up.

        `policy_version` is the version after the step. `trained` holds order number, staleness and advantages
        by sample index; `dropped` order number and reason.
        """

        def write(connection: sqlite3.Connection) -> None:
            for order_number, staleness, advantages in trained:
                connection.execute(
                    "UPDATE groups SET train_step = ?, staleness = ? WHERE order_number = ?",
                    (policy_version, staleness, order_number),
                )
                connection.executemany(
                    "UPDATE completions SET advantage = ? WHERE order_number = ? AND sample_index = ?",
                    [(advantage, order_number, index) for index, advantage in enumerate(advantages)],
                )
                self._move(connection, order_number, GroupState.TRAINED, policy_version, "")
            for order_number, reason in dropped:
                connection.execute("UPDATE groups SET drop_reason = ? WHERE order_number = ?", (reason, order_number))
                self._move(connection, order_number, GroupState.DROPPED, policy_version, reason)
            connection.execute(
                "INSERT OR REPLACE INTO progress VALUES (0, ?, ?, ?)", (policy_version, next_order_number, num_episodes)
            )

        await self._run(write)

    async def snapshot(self, path: Path) -> None:
        """Writes a copy of the database as it is now."""

        def copy(connection: sqlite3.Connection) -> None:
            with sqlite3.connect(path) as target:
                connection.backup(target)
                # One file, without a write-ahead log beside it, so that its digest says all.
                target.execute("PRAGMA journal_mode = DELETE")
            target.close()

        await self._run(copy)

    async def forget_committed_tokens(self) -> None:
        """Deletes the token arrays of settled groups, once a checkpoint holds what they did. Text and scores stay."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE completions SET token_ids = NULL, behavior_logprobs = NULL WHERE token_ids IS NOT NULL AND"
                " order_number IN (SELECT order_number FROM groups WHERE state IN ('TRAINED', 'DROPPED'))"
            )

        await self._run(write)

    async def num_groups(self) -> dict[str, int]:
        """Number of groups by state."""

        def read(connection: sqlite3.Connection) -> dict[str, int]:
            return dict(connection.execute("SELECT state, COUNT(*) FROM groups GROUP BY state"))

        return await self._run(read)

    async def page(self, first_order_number: int, limit: int) -> list[RecordedGroup]:
        """Up to `limit` groups in the order of issue, from an order number on."""
        return await self._run(lambda connection: list(_read_groups(connection, first_order_number, limit)))

    def _move(
        self, connection: sqlite3.Connection, order_number: int, state: GroupState, policy_version: int, detail: str
    ) -> None:
        connection.execute("UPDATE groups SET state = ? WHERE order_number = ?", (state.value, order_number))
        self._transition(connection, order_number, state, policy_version, detail)

    def _transition(
        self, connection: sqlite3.Connection, order_number: int, state: GroupState, policy_version: int, detail: str
    ) -> None:
        connection.execute(
            "INSERT INTO transitions (order_number, state, time_s, attempt, policy_version, detail)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (order_number, state.value, time.time(), self._attempt, policy_version, detail),
        )

    async def _run(self, work: Callable[[Any], ResultT]) -> ResultT:
        """Runs `work` in one transaction on the ledger's thread."""

        def transaction() -> ResultT:
            try:
                if self._connection is None:
                    return work(None)
                with self._connection:
                    return work(self._connection)
            except sqlite3.OperationalError as error:
                if "full" in str(error):
                    raise ResourceExhausted(
                        f"the disk is full: the ledger {self._path} cannot be written", reason="DISK_FULL"
                    ) from error
                raise
            except sqlite3.DatabaseError as error:
                raise DataLoss(
                    f"the ledger {self._path} is damaged ({error}); a resume takes the last checkpoint's in its place",
                    reason="LEDGER_DAMAGED",
                ) from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, transaction)


def _read_groups(connection: sqlite3.Connection, first: int, limit: int) -> Iterable[RecordedGroup]:
    rows = connection.execute(
        "SELECT order_number, group_id, prompt_id, prompt_text, trace_id, state, drop_reason, train_step, staleness"
        " FROM groups WHERE order_number >= ? ORDER BY order_number LIMIT ?",
        (first, limit),
    ).fetchall()
    for row in rows:
        completions = connection.execute(
            "SELECT sample_index, text, num_tokens, finish_reason, version_spans, outcome, reward, verifier_scores,"
            " advantage FROM completions WHERE order_number = ? ORDER BY sample_index",
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
    advantage: float | None,
) -> RecordedCompletion:
    score = outcome and Score(
        sample_index=sample_index,
        outcome=ScoreOutcome(outcome),
        reward=reward or 0.0,
        verifier_scores=tuple(
            VerifierScore(name, ScoreOutcome(part), value, detail, duration_s)
            for name, part, value, detail, duration_s in json.loads(verifier_scores or "[]")
        ),
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
