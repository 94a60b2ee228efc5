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
from pathlib import Path
from typing import Any, TypeVar

from services.coordinator.ledger_schema import make_tables
from services.coordinator.recorded import GroupState, RecordedGroup, read_groups
from shoal.errors import DataLoss, ResourceExhausted
from shoal.grpo.moments import Moments
from shoal.rollout import (
    Completion,
    Prompt,
    Rollout,
    Score,
    ScoreOutcome,
)
from shoal.wire import float32_to_wire, int32_to_wire

ResultT = TypeVar("ResultT")
_NOTHING_SEEN = Moments()


@dataclass(frozen=True)
class Progress:
    """How far the run is, as of its last step boundary."""

    policy_version: int
    next_order_number: int
    """The first group that no step has used up: where issue goes on after a restore."""
    num_episodes: int
    """Completions that steps have used up."""
    kl_coef: float | None = None
    """Of the KL in the reward, where it adapts."""
    reward_moments: Moments = _NOTHING_SEEN
    """Of all rewards that steps have compared."""


@dataclass(frozen=True)
class IssueState:
    """What has been asked so far, and what will not be asked again."""

    given: dict[int, int]
    """The data's positions of groups that no step has used up, by order number."""
    next_position: int
    """The data's position behind all that was issued."""
    excluded: frozenset[str]
    """Prompts that are not asked again."""


class Ledger:
    """Reads and writes one run's database; every method returns when its transaction is on disk."""

    def __init__(self, path: Path, attempt: int) -> None:
        """Opens or makes the database. Transitions are stamped with `attempt`."""
        self._path = path
        self._attempt = attempt
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> Progress:
        """Opens the database and says how far the run is.

        Raises `FailedPrecondition` for one that another version of Shoal wrote, `DataLoss` for a damaged one.
        """
        return await self._run(self._open)

    def _open(self, _: object) -> Progress:
        connection = sqlite3.connect(self._path, isolation_level="IMMEDIATE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        try:
            make_tables(connection, self._path)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        row = connection.execute(
            "SELECT policy_version, next_order_number, num_episodes, kl_coef, reward_count, reward_mean,"
            " reward_squares FROM progress"
        ).fetchone()
        if row is None:
            return Progress(0, 0, 0)
        version, next_order_number, num_episodes, kl_coef, *moments = row
        return Progress(version, next_order_number, num_episodes, kl_coef, Moments(*moments))

    async def close(self) -> None:
        """Closes the database; the ledger cannot be used any more."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, connection.close)
        self._thread.shutdown()

    async def issue_state(self) -> IssueState:
        """Where the issue of prompts goes on."""

        def read(connection: sqlite3.Connection) -> IssueState:
            given = connection.execute(
                "SELECT order_number, position FROM groups WHERE order_number >="
                " COALESCE((SELECT next_order_number FROM progress), 0)"
            )
            (last,) = connection.execute("SELECT MAX(position) FROM groups").fetchone()
            excluded = connection.execute("SELECT prompt_id FROM excluded_prompts")
            return IssueState(dict(given), 0 if last is None else last + 1, frozenset(row[0] for row in excluded))

        return await self._run(read)

    async def issued(
        self,
        order_number: int,
        position: int,
        group_id: str,
        prompt: Prompt,
        trace_id: str,
        policy_version: int,
        detail: str,
    ) -> None:
        """The prompt at a position of the data was issued, or issued again: what was sampled for it before is
        forgotten."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO groups (order_number, group_id, prompt_id, position, prompt_text, trace_id, state,"
                " num_issues) VALUES (?, ?, ?, ?, ?, ?, 'ISSUED', 1) ON CONFLICT (order_number) DO UPDATE SET"
                " state = 'ISSUED', num_issues = num_issues + 1, trace_id = excluded.trace_id",
                (order_number, group_id, prompt.prompt_id, position, prompt.text, trace_id),
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

    async def scored(
        self, order_number: int, scores: Iterable[Score], policy_version: int, greedy: Score | None = None
    ) -> None:
        """All completions of a group were scored, and its greedy one, if there is one."""
        rows = [
            (
                score.outcome.value,
                score.reward if score.outcome is ScoreOutcome.SCORED else None,
                json.dumps(
                    [
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
                ),
                json.dumps([[part.name, part.value] for part in score.parts]),
                order_number,
                score.sample_index,
            )
            for score in scores
        ]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "UPDATE completions SET outcome = ?, reward = ?, verifier_scores = ?, reward_parts = ?"
                " WHERE order_number = ? AND sample_index = ?",
                rows,
            )
            if greedy is not None and greedy.outcome is ScoreOutcome.SCORED:
                connection.execute(
                    "UPDATE groups SET greedy_reward = ? WHERE order_number = ?", (greedy.reward, order_number)
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
        trained: Sequence[tuple[int, int, Sequence[Rollout]]],
        dropped: Sequence[tuple[int, str]],
        next_order_number: int,
        num_episodes: int,
        excluded: Sequence[tuple[int, str]] = (),
        kl_coef: float | None = None,
        reward_moments: Moments = _NOTHING_SEEN,
    ) -> None:
        """A step is over: one transaction for all that it used up.

        `policy_version` is the version after the step. `trained` holds order number, staleness and what was trained
        on, with reward and advantages as the learner had them; `dropped` order number and reason; `excluded` order
        number and prompt of what is not asked again; `kl_coef` is the next step's, `reward_moments` are of all
        rewards up to this step.
        """

        def write(connection: sqlite3.Connection) -> None:
            for order_number, staleness, rollouts in trained:
                connection.execute(
                    "UPDATE groups SET train_step = ?, staleness = ? WHERE order_number = ?",
                    (policy_version, staleness, order_number),
                )
                connection.executemany(
                    "UPDATE completions SET reward = ?, advantage = ?, token_advantages = ?, weight = ?"
                    " WHERE order_number = ? AND sample_index = ?",
                    [
                        (
                            rollout.reward,
                            rollout.advantage,
                            None if rollout.token_advantages is None else float32_to_wire(rollout.token_advantages),
                            rollout.weight,
                            order_number,
                            rollout.completion.sample_index,
                        )
                        for rollout in rollouts
                    ],
                )
                self._move(connection, order_number, GroupState.TRAINED, policy_version, "")
            for order_number, reason in dropped:
                connection.execute("UPDATE groups SET drop_reason = ? WHERE order_number = ?", (reason, order_number))
                self._move(connection, order_number, GroupState.DROPPED, policy_version, reason)
            connection.execute(
                "INSERT OR REPLACE INTO progress VALUES (0, ?, ?, ?, ?, ?, ?, ?)",
                (
                    policy_version,
                    next_order_number,
                    num_episodes,
                    kl_coef,
                    reward_moments.count,
                    reward_moments.mean,
                    reward_moments.squares,
                ),
            )
            connection.executemany(
                "INSERT OR IGNORE INTO excluded_prompts (order_number, prompt_id) VALUES (?, ?)", excluded
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
                "UPDATE completions SET token_ids = NULL, behavior_logprobs = NULL, token_advantages = NULL"
                " WHERE token_ids IS NOT NULL AND"
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
        return await self._run(lambda connection: list(read_groups(connection, first_order_number, limit)))

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
