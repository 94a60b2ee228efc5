"""Evaluation: held-out questions, answered by one version of the weights, through the same path as training.

    step boundary -> all questions sampled at the version that the generators hold -> the next step
                          \\-> scored -> reported, beside the next step

The training loop waits while answers are sampled, so that no publish changes the weights meanwhile. It continues once
the last answer is sampled. The generators also sample groups for training meanwhile, except in a pause: a requested
evaluation then has the generators to itself, and the run stays paused. An evaluation has its own seeds and does not
touch the ledger, so training is the same with and without evaluations.
"""

import asyncio
from collections.abc import Sequence

from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.rollout.evaluation.result import EvaluationResult
from services.coordinator.rollout.evaluation.round import EvaluationRound
from services.coordinator.rollout.rollout_parts import RolloutParts
from services.coordinator.run.run_parts import RunParts
from services.coordinator.run.saving import StepBoundary
from shoal.data import HeldOut
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ShoalError


class Evaluations:
    """Runs the due and the requested evaluations of a run, one at a time, and reports each evaluation once."""

    def __init__(
        self, run: RunParts, parts: RolloutParts, version: CurrentVersion, boundary: StepBoundary, held_out: HeldOut
    ) -> None:
        self._run = run
        self._parts = parts
        self._version = version
        self._boundary = boundary
        self.held_out = held_out
        """The questions. Before the first evaluation, an attempt removes questions that cannot be asked."""
        self._last_round: asyncio.Task[None] | None = None
        self._rounds: set[asyncio.Task[None]] = set()
        """Unfinished evaluations. At most one evaluation is being sampled; the other evaluations are being scored."""
        self._num_rounds = 0
        self._begun: set[int] = set()
        """Steps whose policy is evaluated already, or whose answers are being scored."""
        self.blocked_s = 0.0
        """Total time for which the training loop has waited for evaluations, without pauses."""

    async def request(self) -> EvaluationResult:
        """Requests an evaluation at the next step boundary, and waits for the result.

        A paused run is evaluated at once, and stays paused. Raises `FailedPrecondition` when the run has no questions,
        or ends before the result.
        """
        if not self.held_out.prompts:
            raise FailedPrecondition(
                "the run has no held-out questions: set evaluation.sources when you resume it, or in the next run",
                reason=ErrorReason.NO_QUESTIONS,
            )
        return await self._run.controls.request_evaluation()

    async def run_if_due(self) -> None:
        """Evaluates the policy with `run` if an evaluation is due at this step and has not been done."""
        is_due = self._run.config().evaluation.is_due(self._version.policy_version, self._run.config().run.num_steps)
        if is_due and self._run.controls.stop is None:
            await self._run_once()

    async def run_last(self) -> None:
        """Evaluates the final policy of a stopped run, if there are questions and the policy has not been evaluated."""
        if self.held_out.prompts:
            await self._run_once()

    async def _run_once(self) -> None:
        step = self._version.policy_version
        if step not in self._begun and not self._run.report.has_evaluated(step):
            await self.run()

    async def run(self) -> None:
        """Evaluates the generators' weights, and returns once every answer is sampled. Cancels if the run stops now."""
        controls = self._run.controls
        if controls.evaluation_requests:
            await self._run.commands.begin_evaluation()
        began = controls.running_s()
        version = self._version.weights
        self._num_rounds += 1
        self._begun.add(version.policy_version)
        name = f"{self._run.record.run_id}/{version.attempt}/evaluation-{version.policy_version}-{self._num_rounds}"
        evaluation = EvaluationRound(name, version, self._parts)
        requests = controls.take_evaluation_requests()
        running = asyncio.create_task(self._complete(evaluation, requests, after=self._last_round))
        self._last_round = running
        self._rounds.add(running)
        running.add_done_callback(self._rounds.discard)
        sampled = asyncio.create_task(evaluation.all_sampled.wait())
        either = asyncio.create_task(asyncio.wait([running, sampled], return_when=asyncio.FIRST_COMPLETED))
        try:
            while not either.done():
                if not await self._boundary.wait_while_paused():
                    await self.cancel()
                    return
                if controls.stands_still:  # The pause came after the evaluation had begun, and then a request.
                    await self._run.commands.begin_evaluation()
                    continue
                await controls.wait_for_change_or(either)
        finally:
            sampled.cancel()
            either.cancel()
            self.blocked_s += controls.running_s() - began
            await self._run.commands.end_evaluation()
        if running.done():
            await running

    async def finish(self) -> None:
        """Waits until all answers are scored and reported. Raises the error that prevented this."""
        if self._last_round is not None:
            await self._last_round

    async def cancel(self) -> None:
        """Cancels the unfinished evaluations, which then have no result."""
        rounds, self._last_round = list(self._rounds), None
        for running in rounds:
            running.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)

    async def _complete(
        self,
        evaluation: EvaluationRound,
        requests: Sequence["asyncio.Future[EvaluationResult]"],
        after: "asyncio.Task[None] | None",
    ) -> None:
        """Completes one evaluation, reports it `after` the previous evaluation, and answers its requests."""
        error: BaseException = FailedPrecondition("the evaluation was canceled: the run is ending")
        try:
            async with self._run.report.shown_alive(
                f"evaluating the policy of step {evaluation.version.policy_version}",
                lambda: "" if self._run.controls.stands_still else evaluation.describe_progress(),
            ):
                result = await evaluation.result(self.held_out)
            if after is not None:
                await after
            self._run.report.evaluation(result)
            for request in requests:
                if not request.done():
                    request.set_result(result)
        except ShoalError as failure:
            error = failure
            raise
        finally:
            for request in requests:
                if not request.done():
                    request.set_exception(error)
