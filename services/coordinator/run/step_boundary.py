"""The boundary between two train steps, where ledger and learner agree."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from services.coordinator.run.controls import RunControls, StopMode
from services.coordinator.run.saving import Saving
from services.coordinator.workers.learner_client import LearnerClient
from shoal.error_reasons import ErrorReason
from shoal.errors import ShoalError


@dataclass
class StepBoundary:
    """Waits while the run stands still, and answers requests for checkpoints."""

    controls: RunControls
    learner: LearnerClient
    saving: Saving

    async def wait_while_paused(self, *, before_checkpoint: Callable[[], None] = lambda: None) -> bool:
        """Returns True once the run is not paused, or is to be evaluated, and False when it must stop now.

        Answers requests for checkpoints meanwhile. Raises `FailedPrecondition` (LEARNER_LOST) when the learner was told
        to end, after a checkpoint. Calls `before_checkpoint` before each. Raises why a checkpoint could not be finished
        beside training.
        """
        while True:
            self.saving.raise_failure()
            if self.learner.is_leaving:
                before_checkpoint()
                raise await self._part_with_learner()
            while request := next((each for each in self.controls.checkpoint_requests if not each.done()), None):
                before_checkpoint()
                await self._answer(request)
            if self.controls.stop is StopMode.NOW:
                return False
            if self.controls.evaluation_requests or not self.controls.stands_still:
                return True
            await self.controls.wait_for_change()

    async def _part_with_learner(self) -> ShoalError:
        """Saves what only the learner has; returns the error that ends the attempt, of which no step is lost then."""
        try:
            checkpoint_id = await self.saving.save_now()
        except ShoalError as error:
            if error.reason == ErrorReason.LEARNER_LOST:
                return error
            return self.learner.part(f"it was told to end, and no checkpoint could be written: {error.message}")
        return self.learner.part(f"it was told to end, and {checkpoint_id} has all its steps")

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
