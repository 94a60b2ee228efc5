"""The runs of a data folder. At most one run is active, and other runs may wait for its end."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.struct_pb2 import Struct

from services.coordinator.remote.fetching import take_from_mirror
from services.coordinator.run.active_run import ActiveRun
from services.coordinator.run.checkpoints import Checkpoints, check_num_steps
from services.coordinator.run.checks.changed_inputs import changed_inputs
from services.coordinator.run.checks.preflight import PreparedInputs, preflight
from services.coordinator.run.config_updates import rate_note
from services.coordinator.store.events import EVENTS, EventLog, PastLogs, follow_events
from services.coordinator.store.files.disk_errors import is_full, writing
from services.coordinator.store.run_folders import RunFolders
from services.coordinator.store.run_lock import RunLock, is_driven
from services.coordinator.store.run_record import RunRecord, RunState, holds_run, new_run_id
from services.coordinator.workers.registry import WorkerRegistry
from shoal.config import RunConfig
from shoal.config.changes import changed_config, changed_fields
from shoal.config.epochs import with_counted_steps
from shoal.config.notes import notes_on
from shoal.config.tables.run import RUN_NAME
from shoal.error_reasons import ErrorReason
from shoal.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    ShoalError,
    Unavailable,
)
from shoal.v1.coordinator_pb2 import WatchRunResponse
from shoal.wire import invalid

_log = logging.getLogger(__name__)

MAX_WAITING = 500
"""Maximum number of waiting runs, since each holds the lock of its folder: an open file."""


@dataclass(frozen=True)
class _OpenRun:
    """A run whose folder this coordinator has locked: the active run, or a waiting run."""

    record: RunRecord
    config: RunConfig
    lock: RunLock
    events: EventLog


class Runs:
    """Starts runs, finds them, and gives access to the active one."""

    def __init__(
        self, data_dir: Path, registry: WorkerRegistry, *, name: str = "", learner_data_dir: Path | None = None
    ) -> None:
        """`name` tells this coordinator from others that share the data folder.

        `learner_data_dir` is the path of the learner's data folder on this machine, by default the data folder itself.
        """
        self.folders = RunFolders(data_dir)
        self.address = ""
        """The coordinator's address on its own machine, for the commands in messages."""
        self._name = name
        self._learner_data_dir = (learner_data_dir or data_dir).absolute()
        self._registry = registry
        self._active: ActiveRun | None = None
        self._queue: list[_OpenRun] = []
        """Runs that wait for the end of the active run, in order."""
        self._past_logs = PastLogs()
        self._is_closing = False
        self._driving: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def start(self, config: RunConfig, run_id: str, *, queue: bool = False) -> RunRecord:
        """Starts a new run after checks of data and model. With `queue`, the run waits if another run is active."""
        run_id = run_id or new_run_id(config.run.name)
        if not RUN_NAME.fullmatch(run_id):
            raise invalid("run_id", f"use 1 to 63 characters of a-z, 0-9, '.', '_' and '-' (given: {run_id!r})")
        async with self._starting if queue else self._only_one():
            folder = self.folders.data_dir / run_id
            if holds_run(folder) and not self.folders.make_way(run_id):
                raise AlreadyExists(
                    f"run {run_id} exists in {self.folders.data_dir}; resume it, or choose another name",
                    reason=ErrorReason.RUN_EXISTS,
                )
            record = RunRecord(run_id, folder)
            inputs = await asyncio.to_thread(preflight, config, record.create_time_s)
            config = with_counted_steps(config, len(inputs.prompts))
            if len(self._queue) >= MAX_WAITING:
                raise ResourceExhausted(
                    f"the queue is full with {MAX_WAITING} runs: start {run_id} after the end of another run",
                    reason=ErrorReason.QUEUE_FULL,
                )
            # The active one may have ended in this turn of the loop, before the first that waits begins.
            if self._is_busy or self._queue:
                return self._wait(record, config)
            return self._begin(record, config, inputs)

    async def resume(self, run_id: str, changes: Mapping[str, Any] | Struct | None = None) -> RunRecord:
        """Resumes a run that has ended, from its last checkpoint, with changes of its configuration.

        Raises `InvalidArgument` for a change that a resumed run cannot take; see `shoal.config.changes`.
        """
        async with self._only_one():
            await asyncio.to_thread(
                take_from_mirror, self.folders.data_dir, run_id, changes or {}, self._learner_data_dir
            )
            record = self.folders.find(run_id)
            before = record.load_config()
            config = changed_config(before, changes or {})
            checkpoints = Checkpoints(record.folder)
            await asyncio.to_thread(checkpoints.check_readable)
            inputs = await asyncio.to_thread(preflight, config, record.create_time_s)
            changed_inputs(config, record.inputs or checkpoints.inputs(), inputs.digests)
            config = with_counted_steps(config, len(inputs.prompts))
            check_num_steps(before, config, checkpoints)
            record.resumed()
            note = rate_note(before, config, max((each.policy_version for each in checkpoints.manifests()), default=0))
            begun = self._begin(record, config, inputs)
            if note:
                self.active(run_id).events.add("notice", note)
            if changed := changed_fields(before, config):
                message = "; ".join(f"{name}: {change}" for name, change in changed.items())
                self.active(run_id).events.add("config_changed", message, fields=list(changed))
            return begun

    def take_up(self) -> None:
        """Continues the run, if any, that this coordinator drove when it last ended, and the waiting runs. Call it
        before the first rpc, so that clients that follow the run find it active."""
        found, damaged = self.folders.left()
        for folder, error in damaged:
            _log.error(
                "a run cannot be read, and does not continue", extra={"folder": str(folder), "error": error.message}
            )
        left = [record for record in found if record.coordinator == self._name]
        go_on = partial(self._begin, inputs=None, restart_reason="the coordinator ended", is_stored=True)
        for record in [record for record in left if record.state is not RunState.QUEUED]:
            if not self._is_busy:
                self._unless_refused(record, go_on)
        for record in reversed([record for record in left if record.state is RunState.QUEUED]):
            self._unless_refused(record, partial(self._wait, is_stored=True))
        self._begin_next()

    def _unless_refused(self, record: RunRecord, begin: Callable[[RunRecord, RunConfig], object]) -> None:
        try:
            begin(record, record.load_config())
        except ShoalError as error:
            _log.error("the run cannot continue", extra={"run_id": record.run_id, "error": error.message})
            if isinstance(error, DataLoss):  # A person has to repair it, and sees here what is wrong.
                record.enter(RunState.FAILED, error.message)
                record.try_to_save()

    def _wait(self, record: RunRecord, config: RunConfig, *, is_stored: bool = False) -> RunRecord:
        """Puts a run at the end of the queue of waiting runs."""
        record.enter(RunState.QUEUED, "waits for the end of earlier runs")
        waiting = self._open(record, config, is_stored=is_stored)
        waiting.events.add("state", record.message, state=record.state.value, policy_version=record.policy_version)
        self._queue.append(waiting)
        return record

    def _begin_next(self) -> None:
        """Begins the run that has waited longest, if none is active."""
        if self._queue and not self._is_busy and not self._is_closing:
            waiting = self._queue.pop(0)
            waiting.record.enter(RunState.STARTING, "")
            self._drive(waiting, None)

    def withdraw(self, run_id: str) -> RunRecord | None:
        """Ends a waiting run with the state STOPPED. Returns None if no run of that name waits."""
        if (waiting := self._waiting(run_id)) is None:
            return None
        self._queue.remove(waiting)
        record = waiting.record
        record.enter(RunState.STOPPED, "stopped before it began")
        record.save()
        waiting.events.add("state", record.message, state=record.state.value, policy_version=record.policy_version)
        waiting.events.close()
        waiting.lock.release()
        return record

    def _waiting(self, run_id: str) -> _OpenRun | None:
        return next((waiting for waiting in self._queue if waiting.record.run_id == run_id), None)

    def _begin(
        self,
        record: RunRecord,
        config: RunConfig,
        inputs: PreparedInputs | None,
        *,
        restart_reason: str = "",
        is_stored: bool = False,
    ) -> RunRecord:
        self._drive(self._open(record, config, is_stored=is_stored), inputs, restart_reason=restart_reason)
        return record

    def _open(self, record: RunRecord, config: RunConfig, *, is_stored: bool) -> _OpenRun:
        """Locks the folder of a run, and writes the run's record there.

        If the record `is_stored` already, a full disk may keep it unchanged: the run itself then waits for room.
        """
        if self._is_closing:
            raise Unavailable(
                "the coordinator is ending; start the run when the coordinator is back", reason=ErrorReason.ENDING
            )
        with writing(record.folder / "run.json"):
            record.folder.mkdir(parents=True, exist_ok=True)
            lock = RunLock(record.folder)
            events = EventLog(record.folder / EVENTS)
            # The number of steps may have been changed for the next step of a coordinator that ended before.
            record.opened(self._name, self.address, config.run.num_steps)
            try:
                record.save_config(config)
                record.save()
            except ResourceExhausted as error:
                if not (is_stored and is_full(error)):
                    raise
        return _OpenRun(record, config, lock, events)

    def _drive(self, run: _OpenRun, inputs: PreparedInputs | None, *, restart_reason: str = "") -> None:
        for note in notes_on(run.config):
            run.events.add("notice", note)
        self._active = ActiveRun(
            run.record,
            run.config,
            self._registry,
            run.events,
            inputs=inputs,
            restart_reason=restart_reason,
            learner_folder=self._learner_data_dir / run.record.run_id,
        )
        self._driving = asyncio.create_task(self._active.drive())
        self._driving.add_done_callback(lambda _: self._ended(run))

    def _ended(self, run: _OpenRun) -> None:
        run.lock.release()
        self._begin_next()

    @property
    def _is_busy(self) -> bool:
        return self._driving is not None and not self._driving.done()

    @contextlib.asynccontextmanager
    async def _only_one(self) -> AsyncIterator[None]:
        """Raises `FailedPrecondition` while a run is active or being started."""
        if self._starting.locked() or self._is_busy or self._queue:
            follow = f"{self._active.record.command('run watch')} follows it; " if self._active else ""
            name = f"run {self._active.record.run_id}" if self._active else "another run"
            raise FailedPrecondition(
                f"{name} is active; {follow}stop that run first, or queue a new run with shoal run start --queue",
                reason=ErrorReason.RUN_ACTIVE,
            )
        async with self._starting:
            yield

    @property
    def is_active(self) -> bool:
        """Whether a run is active."""
        return self._active is not None and not self._active.record.state.has_ended

    def active(self, run_id: str) -> ActiveRun:
        """Returns the active run; `run_id` is its name or empty. Raises for a run that has ended or does not exist."""
        if self._active is not None and self.is_active:
            if run_id in ("", self._active.record.run_id):
                return self._active
        elif not run_id:
            raise NotFound("no run is active", reason=ErrorReason.NO_ACTIVE_RUN)
        try:
            record = self.find(run_id)
        except DataLoss as error:
            raise FailedPrecondition(f"run {run_id} is not active: {error.message}", reason=error.reason) from None
        if record.state is RunState.QUEUED:
            raise FailedPrecondition(
                f"run {record.run_id} has not begun: it {record.message}", reason=ErrorReason.RUN_QUEUED
            )
        raise FailedPrecondition(f"run {record.run_id} has ended: {record.message}", reason=ErrorReason.RUN_ENDED)

    def find(self, run_id: str) -> RunRecord:
        """Returns a run by name. An empty name means the active run, or the newest run if none is active."""
        if self._active is not None and run_id in ("", self._active.record.run_id):
            return self._active.record
        waiting = self._waiting(run_id)
        return self.folders.find(run_id) if waiting is None else waiting.record

    def config_of(self, record: RunRecord) -> RunConfig | None:
        """Returns the configuration of the active, the last or a waiting run, and None for other runs.

        These runs can be described even if their folders are gone.
        """
        if self._active is not None and record is self._active.record:
            return self._active.stored_config
        waiting = self._waiting(record.run_id)
        return None if waiting is None else waiting.config

    def watch(self, run_id: str, after_sequence: int, *, batches: bool) -> AsyncIterator[bytes]:
        """Yields the events of a run after a given event, until the run ends; see `EventLog.watch`."""
        record = self.find(run_id)
        if self._active is not None and self._active.record.run_id == record.run_id:
            return self._active.events.watch(after_sequence, batches=batches)
        if (waiting := self._waiting(run_id)) is not None:
            return waiting.events.watch(after_sequence, batches=batches)
        if not is_driven(record.folder):
            return self._past_logs.watch(record.folder / EVENTS, after_sequence, batches=batches)
        followed = follow_events(record.folder / EVENTS, lambda: is_driven(record.folder), after_sequence)
        return (WatchRunResponse(event=event).SerializeToString() async for event in followed)

    async def close(self, grace_s: float) -> None:
        """Interrupts the active run, and waits at most `grace_s` seconds for its checkpoint.

        The run continues at the next start of the coordinator, and the waiting runs begin after the active run.
        """
        self._is_closing = True
        for waiting in self._queue:
            waiting.events.close(goes_on=True)
            waiting.lock.release()
        if self._active is None or self._driving is None or self._driving.done():
            return
        self._active.commands.interrupt()
        await asyncio.wait([self._driving], timeout=grace_s)
