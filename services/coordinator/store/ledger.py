"""The ledger: what became of every prompt of a run.

A SQLite database in the run's folder. Each group goes ISSUED -> SAMPLED -> SCORED -> TRAINED, or to DROPPED from any of
the first three; every transition is kept. The folder `segments/` beside the database has the data that grow with the
run: texts, tokens and verdicts. From the next checkpoint on, `segments/` also has the rows of groups that steps have
used up. The database has the places of all these data. One thread beside the event loop uses the database; only a
snapshot is copied on another thread.

This file has the statements that write. `rows` and `progress` turn values into rows. `tables/` defines the tables, and
moves data from the tables to segments. `rollouts` reads the ledger for people.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from services.coordinator.store.files.disk_errors import write_error
from services.coordinator.store.progress import IssueState, Progress, read_issue_state, read_progress, write_progress
from services.coordinator.store.reading import damaged
from services.coordinator.store.rows import GroupState, TrainedGroup, sampled_row, scored_row, trained_row
from services.coordinator.store.segments import records
from services.coordinator.store.segments.records import PayloadKind
from services.coordinator.store.segments.series import SEGMENTS, SegmentWriter
from services.coordinator.store.tables.blocks import move_to_block
from services.coordinator.store.tables.moment import Moment
from services.coordinator.store.tables.payloads import (
    forget_samples,
    forget_used_tokens,
    has_payload,
    last_segment,
    name_segments,
    write_payload,
)
from services.coordinator.store.tables.schema import create_tables
from shoal.rollout import Completion, Prompt
from shoal.scores import Score, ScoreOutcome

ResultT = TypeVar("ResultT")


class Ledger:
    """Writes one run's database; every method returns when its transaction is on disk."""

    def __init__(
        self,
        path: Path,
        attempt: int,
        written: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]] = lambda write: write(),
    ) -> None:
        """Sets the path of the database, which `open` opens or creates, and the attempt of new transitions.

        `written` awaits each write. It may repeat a write that failed because the disk is full.
        """
        self.path = path
        self._attempt = attempt
        self._written = written
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._connection: sqlite3.Connection | None = None
        self._segments = SegmentWriter(path.parent / SEGMENTS)

    async def open(self) -> Progress:
        """Opens the database; returns the progress of the run. Raises `FailedPrecondition` for a database of another
        version of Shoal, and `DataLoss` for a damaged one."""
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
        self._segments.last_number = last_segment(connection)
        self._connection = connection
        return read_progress(connection)

    async def close(self) -> None:
        """Closes the database; the ledger cannot be used afterward."""
        connection, self._connection = self._connection, None
        if connection is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, connection.close)
            await loop.run_in_executor(self._thread, self._segments.close)
        self._thread.shutdown()

    async def progress(self) -> Progress:
        """Returns the progress of the run at its last step boundary."""
        return await self._run(read_progress)

    async def issue_state(self) -> IssueState:
        """Returns the state from which the ledger continues to issue prompts."""
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
        """Records that a prompt was issued. If the prompt is issued again, deletes the earlier results of its group.

        A restored ledger may have groups that were dropped before their step. Such groups are issued again.
        """

        def write(connection: sqlite3.Connection) -> None:
            if not has_payload(connection, order_number, PayloadKind.PROMPT):
                self._payload(connection, order_number, PayloadKind.PROMPT, records.prompt_record(prompt))
            connection.execute(
                "INSERT INTO groups (order_number, group_id, prompt_id, position, prompt_text, trace_id, state,"
                " num_issues) VALUES (?, ?, ?, ?, '', ?, 'ISSUED', 1) ON CONFLICT (order_number) DO UPDATE SET"
                " state = 'ISSUED', num_issues = num_issues + 1, trace_id = excluded.trace_id, drop_reason = '',"
                " greedy_reward = NULL",
                (order_number, group_id, prompt.prompt_id, position, trace_id),
            )
            connection.execute("DELETE FROM completions WHERE order_number = ?", (order_number,))
            forget_samples(connection, order_number)
            self._move(connection, order_number, GroupState.ISSUED, policy_version, detail)

        await self._write(write)

    async def sampled(
        self, order_number: int, completions: Iterable[Completion], policy_version: int, detail: str
    ) -> None:
        """Records that all completions of a group were sampled; `detail` names the generator."""
        sampled = list(completions)

        def write(connection: sqlite3.Connection) -> None:
            self._payload(connection, order_number, PayloadKind.TEXTS, records.text_record(sampled))
            self._payload(connection, order_number, PayloadKind.TOKENS, records.token_record(sampled))
            connection.executemany(
                "INSERT INTO completions (order_number, sample_index, text, num_tokens, finish_reason, seed,"
                " version_spans) VALUES (?, ?, '', ?, ?, ?, ?)",
                [sampled_row(order_number, completion) for completion in sampled],
            )
            self._move(connection, order_number, GroupState.SAMPLED, policy_version, detail)

        await self._write(write)

    async def scored(
        self, order_number: int, scores: Iterable[Score], policy_version: int, greedy: Score | None = None
    ) -> None:
        """Records that all completions of a group were scored, including the greedy completion, if there is one."""
        all_scores = list(scores)

        def write(connection: sqlite3.Connection) -> None:
            self._add_scores(connection, order_number, all_scores)
            if greedy is not None and greedy.outcome is ScoreOutcome.SCORED:
                connection.execute(
                    "UPDATE groups SET greedy_reward = ? WHERE order_number = ?", (greedy.reward, order_number)
                )
            self._move(connection, order_number, GroupState.SCORED, policy_version, "")

        await self._write(write)

    async def rejected(self, order_number: int, scores: Sequence[Score]) -> None:
        """Records the scores of a group that is to be scored again, so that the failures can be inspected meanwhile."""
        await self._write(lambda connection: self._add_scores(connection, order_number, scores))

    def _add_scores(self, connection: sqlite3.Connection, order_number: int, scores: Sequence[Score]) -> None:
        self._payload(connection, order_number, PayloadKind.SCORES, records.score_record(scores))
        connection.executemany(
            "UPDATE completions SET outcome = ?, reward = ?, reward_parts = ?"
            " WHERE order_number = ? AND sample_index = ?",
            [scored_row(order_number, score) for score in scores],
        )

    async def dropped(self, order_number: int, reason: str, policy_version: int) -> None:
        """Records at once that a group will not be trained on, even if the next step fails."""
        await self._write(lambda connection: self._drop(connection, order_number, reason, policy_version + 1))

    async def step_done(
        self,
        progress: Progress,
        *,
        trained: Sequence[TrainedGroup],
        dropped: Sequence[tuple[int, str]],
        excluded: Sequence[tuple[int, str]] = (),
    ) -> None:
        """Records the end of a step and all groups that it used up, in one transaction.

        `progress` is the progress after the step. `dropped` has order number and reason of each dropped group;
        `excluded` has order number and id of each prompt that is not issued again. Without `trained` groups the step
        was not applied.
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

        await self._write(write)

    async def config(self) -> Mapping[str, Any] | None:
        """Returns the configuration that `config_changed` last recorded; None in a new ledger."""
        row = await self._run(lambda connection: connection.execute("SELECT fields FROM config").fetchone())
        return None if row is None else json.loads(row[0])

    async def config_changed(self, policy_version: int, fields: Mapping[str, str], config: Mapping[str, Any]) -> None:
        """Records the configuration of the steps after `policy_version`, and its changed fields.

        `fields` has a text with the old and the new value of each changed field. It is empty if no field changed.
        """
        row = (self._attempt, policy_version, time.time(), json.dumps(dict(fields)))

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO config VALUES (0, ?)", (json.dumps(dict(config)),))
            if fields:
                connection.execute(
                    "INSERT INTO config_changes (attempt, policy_version, time_s, fields) VALUES (?, ?, ?, ?)", row
                )

        await self._write(write)

    async def moment(self) -> Moment:
        """Returns the current state of the database. The caller has to write it with `write`, and then to close it.

        First moves used-up groups to blocks. Deletes tokens, but not texts or scores, of trained and dropped groups.
        """
        # One transaction a block: others need not wait for the next one.
        while await self._run(lambda connection: move_to_block(connection, self._segments)):
            pass

        def take(connection: sqlite3.Connection) -> Moment:
            forget_used_tokens(connection)
            segments = name_segments(connection, self._segments)
            connection.commit()
            return Moment(self.path, segments)

        return await self._run(take)

    async def write(self, moment: Moment, path: Path) -> None:
        """Writes a moment to a database file while transactions go on, and syncs the segments that it needs to disk."""

        def copy() -> None:
            moment.copy(path)
            self._segments.sync(moment.segments)

        await asyncio.to_thread(self._reporting_errors, copy, path)

    async def delete_tokens(self, keep: Collection[str]) -> None:
        """Deletes each segment of tokens that the ledger does not need and `keep` does not name."""

        def delete(connection: sqlite3.Connection) -> None:
            needed = {digest.name for digest in name_segments(connection, self._segments)}
            self._segments.delete_tokens({*keep, *needed})

        await self._run(delete)

    def _payload(self, connection: sqlite3.Connection, order_number: int, kind: PayloadKind, record: bytes) -> None:
        write_payload(connection, self._segments, order_number, kind, record)

    def _train(self, connection: sqlite3.Connection, group: TrainedGroup, train_step: int) -> None:
        connection.execute(
            "UPDATE groups SET train_step = ?, staleness = ? WHERE order_number = ?",
            (train_step, group.staleness, group.order_number),
        )
        connection.executemany(
            "UPDATE completions SET reward = ?, advantage = ?, weight = ? WHERE order_number = ? AND sample_index = ?",
            [trained_row(group.order_number, rollout) for rollout in group.rollouts],
        )
        if record := records.token_advantage_record(group.rollouts):
            self._payload(connection, group.order_number, PayloadKind.TOKEN_ADVANTAGES, record)
        self._move(connection, group.order_number, GroupState.TRAINED, train_step, "")

    def _drop(self, connection: sqlite3.Connection, order_number: int, reason: str, step: int) -> None:
        """Drops a group in a step. As for a trained group, the transition has the version that the step makes."""
        connection.execute("UPDATE groups SET drop_reason = ? WHERE order_number = ?", (reason, order_number))
        self._move(connection, order_number, GroupState.DROPPED, step, reason)

    def _move(
        self, connection: sqlite3.Connection, order_number: int, state: GroupState, policy_version: int, detail: str
    ) -> None:
        """Sets the state of a group, and records when the group entered it."""
        connection.execute("UPDATE groups SET state = ? WHERE order_number = ?", (state.value, order_number))
        connection.execute(
            "INSERT INTO transitions (order_number, state, time_s, attempt, policy_version, detail)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (order_number, state.value, time.time(), self._attempt, policy_version, detail),
        )

    async def _write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Runs `work` in one transaction, whose failure leaves the ledger as it was."""

        async def write() -> None:
            await self._run(work)

        await self._written(write)

    async def _run(self, work: Callable[[Any], ResultT]) -> ResultT:
        """Runs `work` in one transaction on the ledger's thread."""

        def transaction() -> ResultT:
            if self._connection is None:
                return work(None)
            with self._segments.transaction(), self._connection:
                return work(self._connection)

        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: self._reporting_errors(transaction, self.path)
        )

    def _reporting_errors(self, work: Callable[[], ResultT], path: Path) -> ResultT:
        """Runs `work`, which writes `path`. Raises as `write_error`, and `DataLoss` when the ledger is damaged."""
        try:
            return work()
        except (sqlite3.OperationalError, OSError) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
                raise damaged(self.path, error) from error  # Its tables are not those that were made.
            raise write_error(error, path) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise damaged(self.path, error) from error
