"""The boundary between two train steps, where ledger and learner agree."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from services.coordinator.reporting.report import Report
from services.coordinator.rollout.controls import RunControls, StopMode
from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.run.full_disk import FullDisk
from services.coordinator.store.files.disk_errors import is_full
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.run_record import RunRecord
from services.coordinator.workers.learner_client import LearnerClient
from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import ResourceExhausted, ShoalError
from shoal.rollout import WeightVersion

_log = logging.getLogger(__name__)


@dataclass
class StepBoundary:
    """Waits while the run stands still, and writes checkpoints."""

    config: RunConfig
    controls: RunControls
    record: RunRecord
    version: CurrentVersion
    checkpoints: Checkpoints
    learner: LearnerClient
    ledger: Ledger
    report: Report
    full_disk: FullDisk
    num_failed: int = 0
    """Checkpoints in a row for which there was no room."""
    retry_step: int | None = None
    """The step at which the next one is tried then: after one step, two, four, and so on."""

    async def wait_while_paused(self, *, before_checkpoint: Callable[[], None] = lambda: None) -> bool:
        """Returns True once the run is not paused, or is to be evaluated, and False when it must stop now.

        Answers requests for checkpoints meanwhile. Raises `FailedPrecondition` (LEARNER_LOST) when the learner was told
        to end, after a checkpoint. Calls `before_checkpoint` before each.
        """
        while True:
            if self.learner.is_leaving:
                before_checkpoint()
                raise await self._part_with_learner()
            while requests := self.controls.checkpoint_requests:
                before_checkpoint()
                await self._answer(requests[0])
            if self.controls.stop is StopMode.NOW:
                return False
            if self.controls.evaluation_requests or not self.controls.stands_still:
                return True
            await self.controls.wait_for_change()

    async def save_checkpoint(self) -> str:
        """Writes and reports a checkpoint, unless the last one is of this boundary; returns its name.

        Waits while a disk is full.
        """
        return await self.full_disk.written(self._save)

    async def save_if_due(self, every_steps: int) -> None:
        """Writes and reports a checkpoint every so many steps. Reports a full disk, and tries again after more steps.

        Training needs no checkpoint: it goes on meanwhile.
        """
        step = self.version.policy_version
        if step % every_steps and step != self.retry_step:
            return
        try:
            await self._save()
            self.num_failed, self.retry_step = 0, None
        except ResourceExhausted as error:
            if not is_full(error):
                raise
            self.num_failed, self.retry_step = self.num_failed + 1, step + 2**self.num_failed
            self.report.checkpoint_failed(step, error.message)

    async def _save(self) -> str:
        began = time.monotonic()
        steps = [*self.checkpoints.steps(), self.version.policy_version]
        best_step = await asyncio.to_thread(self.report.best_checkpoint, steps)
        checkpoint_id, is_new = await self.checkpoints.save(
            self.learner,
            self.ledger,
            attempt=self.record.attempt,
            keep_last=self.config.checkpoint.keep_last,
            best_step=best_step,
        )
        if is_new or checkpoint_id != self.record.last_checkpoint_id:
            duration_s = time.monotonic() - began
            num_bytes = await asyncio.to_thread(self.checkpoints.num_bytes, checkpoint_id)
            self.report.checkpoint(checkpoint_id, self.version.policy_version, duration_s, num_bytes, best_step)
        return checkpoint_id

    async def try_to_save(self) -> None:
        """Writes a checkpoint before the run fails, if ledger and learner agree. Raises nothing."""
        try:
            progress = await self.ledger.progress()
            if await self.learner.version() == WeightVersion(self.record.attempt, progress.policy_version):
                await self._save()
        except Exception as error:
            _log.warning("no checkpoint could be written before the end: %s", error)

    async def _part_with_learner(self) -> ShoalError:
        """Saves what only the learner has; returns the error that ends the attempt, of which no step is lost then."""
        try:
            checkpoint_id = await self._save()
        except ShoalError as error:
            if error.reason == ErrorReason.LEARNER_LOST:
                return error
            return self.learner.part(f"it was told to end, and no checkpoint could be written: {error.message}")
        return self.learner.part(f"it was told to end, and {checkpoint_id} has all its steps")

    async def _answer(self, request: "asyncio.Future[str]") -> None:
        # It stays among those that wait meanwhile: if the run ends, it is refused with the run's error.
        try:
            checkpoint_id = await self._save()
        except ShoalError as error:
            if not request.cancelled():
                request.set_exception(error)
        else:
            if not request.cancelled():
                request.set_result(checkpoint_id)
        self.controls.end_checkpoint_request(request)
