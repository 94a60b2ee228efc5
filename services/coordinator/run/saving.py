"""Saving: which checkpoints an attempt writes, and when.

A due checkpoint is finished during the steps after it.

    step boundary                        beside the steps after it
    the ledger's moment is taken,        the learner's ranks sync and digest their files,
    the learner's ranks write      ->    the moment is copied, the manifest commits both

At most one checkpoint is being finished at a time. Everything that needs a checkpoint waits until it is finished: the
next checkpoint, a change of the configuration, a learner that was told to end, and the end of the run. An attempt that
ends without its learner abandons an unfinished checkpoint, which does not count since it has no manifest. At a step
boundary, ledger and learner agree, and requests for checkpoints are answered.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.coordinator.run.checkpoints import Checkpoints, WrittenCheckpoint
from services.coordinator.run.controls import RunControls, StopMode
from services.coordinator.run.full_disk import FullDisk
from services.coordinator.run.policy import Policy
from services.coordinator.run.run_parts import RunParts
from services.coordinator.store.files.disk_errors import is_full
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.retention import best_of
from services.coordinator.workers.fleet import Fleet
from shoal.error_reasons import ErrorReason
from shoal.errors import ResourceExhausted, ShoalError
from shoal.paths import step_name
from shoal.rollout import WeightVersion

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Save:
    """A checkpoint between its two parts."""

    written: WrittenCheckpoint
    best_step: int | None
    began: float
    """Time at which training stopped for the checkpoint, in `time.monotonic()`."""
    pause_s: float
    """Time in seconds until training continued."""


@dataclass
class Saving:
    """Writes the checkpoints of an attempt. Call methods that begin a checkpoint only at a step boundary."""

    run: RunParts
    policy: Policy
    checkpoints: Checkpoints
    ledger: Ledger
    full_disk: FullDisk
    num_failed: int = field(init=False, default=0)
    """Number of checkpoints in a row for which there was no room on the disk."""
    retry_step: int | None = field(init=False, default=None)
    """The step at which a checkpoint is tried again after a full disk. The wait is 1 step, then 2, 4, and so on."""
    _finishing: "asyncio.Task[None] | None" = field(init=False, default=None)
    _is_committing: bool = field(init=False, default=False)
    _failure: Exception | None = field(init=False, default=None)
    """The reason why a checkpoint could not be finished, unless a disk was full."""

    async def save(self) -> str:
        """Writes a checkpoint with `save_now`, and returns its name. Waits while a disk is full."""
        return await self.full_disk.written(self.save_now)

    async def save_now(self) -> str:
        """Writes, commits and reports a checkpoint, unless this boundary already has one. Returns its name."""
        await self.settle()
        self.raise_failure()
        save = await self._write()
        if save is None:
            return self.run.record.last_checkpoint_id
        await asyncio.shield(self._begin(self._finish(save), save))
        return save.written.checkpoint_id

    async def save_if_due(self, every_steps: int) -> None:
        """Writes a checkpoint at the configured interval of steps, and finishes it during the steps after it.

        Reports a full disk, and tries again after more steps: training needs no checkpoint, and continues meanwhile.
        """
        step = self.policy.step
        if step % every_steps and step != self.retry_step:
            return
        await self.settle()
        self.raise_failure()
        try:
            save = await self._write()
        except ResourceExhausted as error:
            if not is_full(error):
                raise
            self._no_room(step, error)
        else:
            if save is not None:
                self._begin(self._finish_beside(save), save)

    async def try_to_save(self) -> None:
        """Writes a checkpoint before the run fails, if ledger and learner agree. Raises nothing.

        A checkpoint that could not be finished may be the cause of the failure, but this cause may no longer exist.
        """
        self._failure = None
        try:
            progress = await self.ledger.progress()
            if await self.policy.learner.version() == WeightVersion(self.run.record.attempt, progress.policy_version):
                await self.save_now()
        except Exception as error:
            _log.warning("no checkpoint could be written before the end: %s", error)

    async def settle(self) -> None:
        """Waits until no checkpoint is being finished. Ignores failures."""
        if self._finishing is not None:
            await asyncio.gather(self._finishing, return_exceptions=True)

    def raise_failure(self) -> None:
        """Raises the error, if any, that kept a checkpoint from being finished during training."""
        if self._failure is not None:
            raise self._failure

    async def abandon(self) -> None:
        """Abandons a checkpoint that waits for the learner. Waits for a checkpoint that is being committed."""
        if self._finishing is not None and not self._is_committing:
            self._finishing.cancel()
        await self.settle()

    async def _write(self) -> _Save | None:
        """Captures the present ledger and learner. Returns None if the last checkpoint is of this boundary."""
        began = time.monotonic()
        progress = await self.ledger.progress()
        steps = [*self.checkpoints.steps(), progress.policy_version]
        best_step = await asyncio.to_thread(self._best_of, steps)
        written = await self.checkpoints.write(
            self.policy.learner,
            self.ledger,
            progress,
            attempt=self.run.record.attempt,
            keep_last=self.run.config().checkpoint.keep_last,
            best_step=best_step,
        )
        pause_s = time.monotonic() - began
        if written is not None:
            return _Save(written, best_step, began, pause_s)
        checkpoint_id = step_name(progress.policy_version)
        if checkpoint_id != self.run.record.last_checkpoint_id:
            await self._report(checkpoint_id, progress.policy_version, pause_s, pause_s, best_step)
        return None

    def _best_of(self, steps: Sequence[int]) -> int | None:
        """Returns the step with the best value of `checkpoint.best_metric`; None if no step has a value."""
        settings = self.run.config().checkpoint
        if not settings.best_metric:
            return None
        values = self.run.report.values_of(settings.best_metric)
        return best_of(steps, values, is_lowest=settings.best == "lowest")

    def _begin(self, finish: Coroutine[Any, Any, None], save: _Save) -> "asyncio.Task[None]":
        """Finishes a checkpoint in a task. Lets its moment go at the end, also of a task canceled before it runs."""
        self._finishing = asyncio.create_task(finish)
        self._finishing.add_done_callback(lambda _: save.written.moment.close())
        return self._finishing

    async def _finish(self, save: _Save) -> None:
        """Waits for the learner's files, commits the checkpoint, and reports it."""
        try:
            files = await self.checkpoints.learner_files(self.policy.learner, save.written)
            self._is_committing = True
            await self.checkpoints.commit(self.ledger, save.written, files)
            step, duration_s = save.written.version.policy_version, time.monotonic() - save.began
            await self._report(save.written.checkpoint_id, step, duration_s, save.pause_s, save.best_step)
        finally:
            self._is_committing = False

    async def _finish_beside(self, save: _Save) -> None:
        try:
            await self._finish(save)
            self.num_failed, self.retry_step = 0, None
        except Exception as error:
            if isinstance(error, ResourceExhausted) and is_full(error):
                self._no_room(save.written.version.policy_version, error)
            else:
                self._failure = error
        self.run.controls.changed.notify()

    def _no_room(self, step: int, error: ResourceExhausted) -> None:
        """Reports a full disk, and plans the next try."""
        self.retry_step = self.policy.step + 2**self.num_failed
        self.num_failed += 1
        self.run.report.checkpoint_failed(step, error.message)

    async def _report(
        self, checkpoint_id: str, step: int, duration_s: float, pause_s: float, best_step: int | None
    ) -> None:
        num_bytes = await asyncio.to_thread(self.checkpoints.num_bytes, checkpoint_id)
        self.run.record.checkpoint_written(checkpoint_id)
        self.run.report.checkpoint(checkpoint_id, step, duration_s, pause_s, num_bytes, best_step)


@dataclass
class StepBoundary:
    """Waits while the run is paused, and answers requests for checkpoints."""

    controls: RunControls
    fleet: Fleet
    saving: Saving

    async def wait_while_paused(self, *, before_checkpoint: Callable[[], None] = lambda: None) -> bool:
        """Returns True once the run is not paused, or is to be evaluated, and False when it must stop now.

        Answers requests for checkpoints meanwhile. If the learner was told to end, writes a checkpoint and raises
        `FailedPrecondition` (LEARNER_LOST). Calls `before_checkpoint` before each checkpoint. Raises the error, if any,
        that kept a checkpoint from being finished during training.
        """
        while True:
            self.saving.raise_failure()
            if self.fleet.learner_is_leaving:
                before_checkpoint()
                raise await self._part_with_learner()
            while request := next((each for each in self.controls.checkpoint_requests if not each.done()), None):
                before_checkpoint()
                await self._answer(request)
            if self.controls.stop is StopMode.NOW:
                return False
            if self.controls.evaluation_requests or not self.controls.stands_still:
                return True
            await self.controls.changed.wait()

    async def _part_with_learner(self) -> ShoalError:
        """Saves the steps that only the learner has. Returns the error that ends the attempt."""
        try:
            checkpoint_id = await self.saving.save_now()
        except ShoalError as error:
            if error.reason == ErrorReason.LEARNER_LOST:
                return error
            return self.fleet.part_with_learner(
                f"the learner was told to end, and no checkpoint could be written: {error.message}"
            )
        return self.fleet.part_with_learner(f"the learner was told to end; {checkpoint_id} has all of its steps")

    async def _answer(self, request: "asyncio.Future[str]") -> None:
        # It stays among those that wait meanwhile: if the run ends, it is refused with the run's error.
        try:
            checkpoint_id = await self.saving.save_now()
        except ShoalError as error:
            if not request.cancelled():
                request.set_exception(error)
        else:
            if not request.cancelled():
                request.set_result(checkpoint_id)
