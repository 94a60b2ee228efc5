"""An active run: the attempts of the run, one after the other, until the run ends.

    inputs -> attempt -> FINISHED, STOPPED, or FAILED with an error that every attempt would meet
                | the learner is lost, or a killed coordinator is back
                v
              pause -> the next attempt, from the last checkpoint (`coordinator.max_restarts` times without a new step)

Workers, requests, events and reports belong to the run, so generators and reward services stay loaded in between.
"""

import asyncio
import logging
from pathlib import Path

from services.coordinator.remote.mirror_folder import RunPlaces
from services.coordinator.remote.mirroring import Mirroring
from services.coordinator.remote.segment_check import SegmentCheck
from services.coordinator.reporting.report import Report
from services.coordinator.rollout.evaluation.result import EvaluationResult
from services.coordinator.run.attempt import Attempt
from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.run.checks.changed_inputs import changed_inputs
from services.coordinator.run.checks.preflight import PreparedInputs, preflight
from services.coordinator.run.commands import RunCommands
from services.coordinator.run.config_updates import ConfigUpdates, left_waiting
from services.coordinator.run.controls import RunControls, StopMode
from services.coordinator.run.run_parts import RunParts
from services.coordinator.store.events import EVENTS, EventLog
from services.coordinator.store.files.disk_errors import is_full, write_error
from services.coordinator.store.run_record import RECORD, RunRecord, RunState
from services.coordinator.workers.fleet import Fleet
from services.coordinator.workers.learner_client import Profile
from services.coordinator.workers.registry import WorkerRegistry
from shoal.concurrency import first_error
from shoal.config import RunConfig
from shoal.config.live import LiveConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ShoalError, Unavailable
from shoal.quantities import counted

_log = logging.getLogger(__name__)

MAX_PAUSE_S = 30.0
"""Maximum pause before a restart. The first restart after a new step has none, the second 1 s, and each further pause
is doubled."""


def count_restart(record: RunRecord, max_restarts: int, reason: str) -> float:
    """Counts a restart in the run's record, and returns the pause before the restart in seconds.

    Raises `FailedPrecondition` with the reasons of all restarts if too many came since the last new step.
    """
    reasons = record.restart_reasons
    if len(reasons) >= max_restarts:
        earlier = f"; earlier reasons: {'; '.join(reversed(reasons))}" if reasons else ""
        raise FailedPrecondition(
            f"{reason}; the run was restarted {counted(len(reasons), 'time')} without a new step, the limit of "
            f"coordinator.max_restarts{earlier}",
            reason=ErrorReason.RESTARTS_SPENT,
        )
    record.restart_counted(reason)
    return 0.0 if len(reasons) == 1 else min(MAX_PAUSE_S, 2.0 ** (len(reasons) - 2))


class ActiveRun:
    """An active run, which begins its attempts and reports its end."""

    def __init__(
        self,
        record: RunRecord,
        config: RunConfig,
        registry: WorkerRegistry,
        events: EventLog,
        *,
        inputs: PreparedInputs | None = None,
        restart_reason: str = "",
        learner_folder: Path | None = None,
    ) -> None:
        """Without `inputs`, they are loaded when the run is driven. With a `restart_reason`, the next attempt counts as
        a restart. `learner_folder` has the learner's part of the checkpoints, if it is not the run's folder."""
        controls, live_config = RunControls(), LiveConfig(config)
        report = Report(record, events, live_config)
        self.record = record
        self.events = events
        self.commands = RunCommands(controls, record, report)
        fleet = Fleet(live_config, record.run_id, registry, events)
        self.parts = RunParts(record, live_config, controls, self.commands, fleet, report, events)
        self._inputs = inputs
        self._restart_reason = restart_reason
        places = RunPlaces(record.folder, learner_folder or record.folder)
        self._mirroring = Mirroring(config.checkpoint.mirror, places, events)
        self._segment_check = SegmentCheck(record.folder, self._mirroring, report.segment_damaged)
        self._max_restarts = config.coordinator.max_restarts
        self._updates: ConfigUpdates | None = None
        self._attempt: Attempt | None = None
        if record.state is RunState.PAUSED and not record.pauses_itself:
            controls.pause()
        elif record.state is RunState.STOPPING:
            controls.request_stop(StopMode.NOW)

    @property
    def updates(self) -> ConfigUpdates:
        """The changes of the run's configuration. Raises `Unavailable` before the run's data are loaded."""
        if self._updates is None:
            raise Unavailable("the run loads its data; ask again in a moment")
        return self._updates

    @property
    def stored_config(self) -> RunConfig:
        """The configuration with all changes, as stored in the run's folder."""
        return self.parts.config() if self._updates is None else self._updates.stored

    async def evaluate(self) -> EvaluationResult:
        """Requests an evaluation with `Evaluations.request`. Raises `Unavailable` before the first attempt."""
        return await self._begun_attempt().evaluations.request()

    async def profile(self, num_steps: int, within_s: float) -> Profile:
        """Records train steps with `Profiles.record`. Raises `Unavailable` before the first attempt."""
        return await self._begun_attempt().profiles.record(num_steps, within_s)

    def _begun_attempt(self) -> Attempt:
        if self._attempt is None:
            raise Unavailable("the run loads its data; ask again in a moment")
        return self._attempt

    async def drive(self) -> None:
        """Drives the run to its end and reports its final state. Raises nothing."""
        try:
            async with first_error(asyncio.TaskGroup()) as tasks:
                managing = tasks.create_task(self.parts.fleet.manage())
                state = await self._drive_attempts()
                managing.cancel()
            await self._mirroring.finish()
            if self.commands.is_interrupted and state is RunState.STOPPED:
                self._interrupted()
            else:
                self.commands.enter(state, self._describe_end(state))
        except Exception as error:
            if not isinstance(error, (ShoalError, OSError)):
                _log.exception("a defect ended the run")
            await self._mirroring.finish()
            if self.commands.is_interrupted and is_full(error):  # Its last checkpoint is whole.
                self._interrupted()
            else:
                self.commands.enter(RunState.FAILED, describe_failure(self.record, error))
        finally:
            self.parts.controls.refuse_requests(FailedPrecondition(f"the run has ended: {self.record.message}"))
            await self.parts.report.close()
            self.events.close(goes_on=self.commands.is_interrupted and not self.record.state.has_ended)

    def _interrupted(self) -> None:
        self.record.interrupted()
        self.parts.report.interrupted()

    def _describe_end(self, state: RunState) -> str:
        step, checkpoint_id = self.record.policy_version, self.record.last_checkpoint_id
        message = f"{state.lower()} after step {step}"
        if state is RunState.STOPPED and step > 0 and not checkpoint_id.endswith(f"{step:08d}"):
            message += f", which no checkpoint has; a resume continues from {checkpoint_id or 'the beginning'}"
        return message

    async def _drive_attempts(self) -> RunState:
        """Drives attempts until one ends the run; returns the run's final state."""
        inputs = self._inputs
        if inputs is None:
            inputs = await asyncio.to_thread(preflight, self.parts.config(), self.record.create_time_s)
        self._tell_of_inputs(inputs)
        await self.parts.report.look_back()
        left = await left_waiting(self.record.folder / EVENTS)
        updates = self._updates = ConfigUpdates(
            self.parts.config, self.record, self.events, len(inputs.prompts), left=left
        )
        while True:
            if self._restart_reason and not await self._begin_restart():
                return RunState.STOPPED
            updates.is_closed = False
            self._attempt = Attempt(
                self.parts, inputs, updates=updates, mirroring=self._mirroring, segment_check=self._segment_check
            )
            try:
                return await self._attempt.run()
            except ShoalError as error:
                if error.reason != ErrorReason.LEARNER_LOST:
                    raise
                if self.parts.controls.stop is not None:
                    return RunState.STOPPED
                self._restart_reason = error.message

    def _tell_of_inputs(self, inputs: PreparedInputs) -> None:
        """Reports the notes on data and model, and records their digests, which the attempt writes.

        Raises `FailedPrecondition` (INPUTS_CHANGED) if the run cannot continue with the changed inputs.
        """
        for note in inputs.notes:
            self.events.add("notice", note)
        before = self.record.inputs or Checkpoints(self.record.folder).inputs()
        if changes := changed_inputs(self.parts.config(), before, inputs.digests):
            message = f"{'; '.join(changes)}; evaluations are compared only with evaluations of the same questions"
            self.events.add("inputs_changed", message, changes=changes)
        elif not before and self.record.attempt > 0:
            self.events.add(
                "notice",
                "the run was started by a version of Shoal that kept no digests of data and model, so earlier changes "
                "of data and model cannot be detected; later changes will be",
            )
        self.record.inputs_read(inputs.digests)

    async def _begin_restart(self) -> bool:
        """Counts the next attempt, and waits for its time. Returns False if the run is to stop instead."""
        pause_s = count_restart(self.record, self._max_restarts, self._restart_reason)
        self.parts.report.restarting(self._restart_reason, pause_s, self._max_restarts)
        if not await self.parts.controls.unless_stopped(asyncio.sleep(pause_s, True), by=tuple(StopMode)):
            return False
        self.record.attempt_begins()
        return True


def describe_failure(record: RunRecord, error: Exception) -> str:
    """Describes the error that ended a run, and how to resume if there is a checkpoint."""
    if isinstance(error, ShoalError):
        message = error.message
    elif isinstance(error, OSError):
        message = write_error(error, record.folder / RECORD).message
    else:
        message = f"a defect in the coordinator, see its log: {type(error).__name__}: {error}"
    if record.last_checkpoint_id:
        message += f"; resume from {record.last_checkpoint_id} with: {record.resume_command()}"
    return message
