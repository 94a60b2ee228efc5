"""The ledger: what became of every prompt of a run.

A SQLite database in the run's folder. Each group goes ISSUED -> SAMPLED -> SCORED -> TRAINED, or to DROPPED from
any of the first three; every transition is kept. All of it runs on one thread beside the event loop.

This file holds the statements that write; `rows` and `progress` turn values into rows, `schema` holds the tables.
`rollouts` reads what was written, for people.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from services.coordinator.store.progress import (
    IssueState,
    Progress,
    read_issue_state,
    read_progress,
    write_progress,
)
from services.coordinator.store.rows import (
    GroupState,
    TrainedGroup,
    sampled_row,
    scored_row,
    trained_row,
)
from services.coordinator.store.schema import create_tables
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, ResourceExhausted
from shoal.rollout import Completion, Prompt, Score, ScoreOutcome

ResultT = TypeVar("ResultT")


class Ledger:
    """Writes one run's database; every method returns when its transaction is on disk."""

    def __init__(self, path: Path, attempt: int) -> None:
        """Names the database; `open` opens or creates it. Transitions are stamped with `attempt`."""
        self.path = path
        self._attempt = attempt
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> Progress:
        """Opens the database; returns the progress of the run.

        Raises `FailedPrecondition` for one of another version of Shoal, and `DataLoss` for a damaged one.
        """
        return await self._run(self._open)

    def _open(self, _: object) -> Progress:
        connection = sqlite3.connect(self.path, isolation_level="IMMEDIATE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        try:
            create_tables(connection, self.path)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return read_progress(connection)

    async def close(self) -> None:
        """Closes the database; the ledger cannot be used afterward."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, connection.close)
        self._thread.shutdown()

    async def progress(self) -> Progress:
        """Returns the progress of the run at its last step boundary."""
        return await self._run(read_progress)

    async def issue_state(self) -> IssueState:
        """Returns where the issue of prompts continues."""
        return await self._run(read_issue_state)

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
        """Records that a prompt was issued; when it is issued again, deletes what became of it before.

        A restored ledger has groups to be issued again that had been dropped before their step.
        """

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO groups (order_number, group_id, prompt_id, position, prompt_text, trace_id, state,"
                " num_issues) VALUES (?, ?, ?, ?, ?, ?, 'ISSUED', 1) ON CONFLICT (order_number) DO UPDATE SET"
                " state = 'ISSUED', num_issues = num_issues + 1, trace_id = excluded.trace_id, drop_reason = '',"
                " greedy_reward = NULL",
                (order_number, group_id, prompt.prompt_id, position, prompt.text, trace_id),
            )
            connection.execute("DELETE FROM completions WHERE order_number = ?", (order_number,))
            self._transition(connection, order_number, GroupState.ISSUED, policy_version, detail)

        await self._run(write)

    async def sampled(
        self, order_number: int, completions: Iterable[Completion], policy_version: int, detail: str
    ) -> None:
        """Records that all completions of a group were sampled; `detail` names the generator."""
        rows = [sampled_row(order_number, completion) for completion in completions]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "INSERT INTO completions (order_number, sample_index, text, num_tokens, finish_reason, seed,"
                " version_spans, token_ids, behavior_logprobs, support_token_ids, support_counts)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            self._move(connection, order_number, GroupState.SAMPLED, policy_version, detail)

        await self._run(write)

    async def scored(
        self, order_number: int, scores: Iterable[Score], policy_version: int, greedy: Score | None = None
    ) -> None:
        """Records that all completions of a group were scored, and its greedy one, if there is one."""
        rows = [scored_row(order_number, score) for score in scores]

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
        """Records that a group is not trained on, whatever becomes of the next step."""

        await self._run(lambda connection: self._drop(connection, order_number, reason, policy_version + 1))

    async def step_done(
        self,
        progress: Progress,
        *,
        trained: Sequence[TrainedGroup],
        dropped: Sequence[tuple[int, str]],
        excluded: Sequence[tuple[int, str]] = (),
    ) -> None:
        """Records the end of a step, in one transaction for everything that it used up.

        `progress` is that after the step. `dropped` holds order number and reason of groups, `excluded` order number
        and prompt id of prompts that are not issued again. A step that trained on nothing was not applied.
        """
        step = progress.policy_version if trained else progress.policy_version + 1

        def write(connection: sqlite3.Connection) -> None:
            for group in trained:
                self._train(connection, group, step)
            for order_number, reason in dropped:
                self._drop(connection, order_number, reason, step)
            write_progress(connection, progress)
            connection.executemany(
                "INSERT OR IGNORE INTO excluded_prompts (order_number, prompt_id) VALUES (?, ?)", excluded
            )

        await self._run(write)

    async def snapshot(self, path: Path) -> None:
        """Writes a copy of the database in its present state."""

        def copy(connection: sqlite3.Connection) -> None:
            with sqlite3.connect(path) as target:
                connection.backup(target)
                # One file without a write-ahead log beside it, so that its digest covers everything.
                target.execute("PRAGMA journal_mode = DELETE")
            target.close()

        await self._run(copy)

    async def forget_committed_tokens(self) -> None:
        """Deletes the token arrays of groups that a checkpoint covers, trained on or dropped. Text and scores stay."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE completions SET token_ids = NULL, behavior_logprobs = NULL, token_advantages = NULL,"
                " support_token_ids = NULL, support_counts = NULL WHERE token_ids IS NOT NULL AND"
                " order_number IN (SELECT order_number FROM groups WHERE state IN ('TRAINED', 'DROPPED'))"
            )

        await self._run(write)

    def _train(self, connection: sqlite3.Connection, group: TrainedGroup, train_step: int) -> None:
        connection.execute(
            "UPDATE groups SET train_step = ?, staleness = ? WHERE order_number = ?",
            (train_step, group.staleness, group.order_number),
        )
        connection.executemany(
            "UPDATE completions SET reward = ?, advantage = ?, token_advantages = ?, weight = ?"
            " WHERE order_number = ? AND sample_index = ?",
            [trained_row(group.order_number, rollout) for rollout in group.rollouts],
        )
        self._move(connection, group.order_number, GroupState.TRAINED, train_step, "")

    def _drop(self, connection: sqlite3.Connection, order_number: int, reason: str, step: int) -> None:
        """Drops a group in a step; the transition has the version that the step makes, as that of a trained one has."""
        connection.execute("UPDATE groups SET drop_reason = ? WHERE order_number = ?", (reason, order_number))
        self._move(connection, order_number, GroupState.DROPPED, step, reason)

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
                        f"the disk is full: the ledger {self.path} cannot be written", reason=ErrorReason.DISK_FULL
                    ) from error
                raise
            except sqlite3.DatabaseError as error:
                raise DataLoss(
                    f"the ledger {self.path} is damaged ({error}); resume the run to restore the last checkpoint's",
                    reason=ErrorReason.LEDGER_DAMAGED,
                ) from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, transaction)
