"""Train steps: plan, train, write to the ledger, publish, report."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from services.coordinator.reporting.report import Report
from services.coordinator.reporting.step_metrics import FinishedStep, StepMetrics, StepTimer
from services.coordinator.reporting.telemetry import publish_spans
from services.coordinator.reporting.unscored import unscored_of
from services.coordinator.rollout.buffer import PacingBuffer
from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.rollout.filtering import judge_group
from services.coordinator.rollout.groups import DropReason, JudgedGroup
from services.coordinator.rollout.prompt_order import PromptOrder
from services.coordinator.rollout.sampling_gate import SamplingGate
from services.coordinator.run.commands import RunCommands
from services.coordinator.run.config_updates import ConfigUpdates
from services.coordinator.run.controls import StopMode
from services.coordinator.run.saving import Saving
from services.coordinator.run.step_boundary import StepBoundary
from services.coordinator.store import long_work
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.rows import TrainedGroup
from services.coordinator.store.run_record import RunRecord
from services.coordinator.training.reward_kl import RewardKl, RewardKlController
from services.coordinator.training.skipped_steps import SkippedSteps, empty_reason
from services.coordinator.training.step_plan import StepPlan, plan_step
from services.coordinator.workers.learner_client import LearnerClient
from services.coordinator.workers.weights.publisher import Publisher, PublishReport
from shoal.config.live import LiveConfig
from shoal.grpo.moments import Moments
from shoal.quantities import counted

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _TakenStep:
    """A step that is applied and in the ledger."""

    groups: Sequence[JudgedGroup]
    plan: StepPlan
    trainer_metrics: dict[str, float]
    timer: StepTimer


@dataclass(kw_only=True)
class TrainSteps:
    """Takes the train steps of a run, one after the other, and keeps its progress."""

    config: LiveConfig
    record: RunRecord
    version: CurrentVersion
    progress: Progress
    buffer: PacingBuffer[JudgedGroup]
    gate: SamplingGate
    prompt_order: PromptOrder
    ledger: Ledger
    learner: LearnerClient
    publisher: Publisher
    updates: ConfigUpdates
    reward_kl: RewardKlController
    commands: RunCommands
    boundary: StepBoundary
    saving: Saving
    metrics: StepMetrics
    report: Report
    learner_lock: asyncio.Lock
    """Taken by a step and by a catch-up: in the middle of a step, the learner would broadcast weights that are newer
    than their version."""
    skipped: SkippedSteps
    num_learned_groups: int = 0
    """Groups that ended the run, since all their completions are right; 0 before, and in other runs."""
    _taking: "asyncio.Task[_TakenStep | None] | None" = None
    """The step that is not reported yet."""

    async def take(self, groups: Sequence[JudgedGroup], timer: StepTimer) -> bool:
        """Takes one step over groups, and publishes its weights; returns whether it was applied.

        Raises `FailedPrecondition` when too many in a row were not (`SkippedSteps`).
        """
        # The learner finishes a step that it has begun, so its end is written even if the run fails in the meantime.
        self._taking = asyncio.create_task(self._take(groups, timer))
        step = await asyncio.shield(self._taking)
        if step is None:
            return False
        publish = None
        with self.gate.closed():
            if await self._may_publish(step):  # A run that stops needs no publish, but its step is reported.
                publish = await self.publisher.publish(self.version.weights)
                await self.commands.stay_paused()
        await self.buffer.release()
        self._report(step, publish)
        return True

    async def take_over_changes(self) -> None:
        """Applies changes of the configuration that wait for the next step; first writes a checkpoint.

        So a restore never goes back before a change. Groups that were judged before it are judged again: what a step
        trains on depends on its configuration alone, as after a restore, which samples them anew.
        """
        while (waiting := self.updates.waiting) is not None:  # Others may be requested meanwhile.
            if self.version.policy_version > 0:
                await self.saving.save()
            async with self.learner_lock:
                await self.learner.set_hyperparameters(self.record.run_id, waiting)
            fields = self.updates.apply(waiting, self.version.policy_version)
            await self.ledger.config_changed(self.version.policy_version, fields, self.updates.trained)
            if "kl.coef" in fields:
                self.reward_kl.coef = self.config().kl.coef
            await self.buffer.judge_again(self._judge_again)

    def _judge_again(self, group: JudgedGroup) -> tuple[JudgedGroup, bool]:
        again = judge_group(self.config(), group.settled)
        return again, again.is_trained

    async def _may_publish(self, step: "_TakenStep") -> bool:
        """Waits while the run is paused, and until the gate is clear; returns False when the run must stop now.

        Reports the step before a checkpoint that is requested meanwhile: a restore would not repeat it.
        """
        async with self.report.shown_alive(
            "waiting with the publish until nothing is sampled (weights.inflight_updates)",
            lambda: (
                "" if self.boundary.controls.stands_still else f"{counted(self.gate.num_inside, 'group')} being sampled"
            ),
            first_after_s=long_work.SLOW_STEP_S,
        ):
            clearing = asyncio.create_task(self.gate.cleared())
            try:
                while await self.boundary.wait_while_paused(before_checkpoint=lambda: self._report(step, None)):
                    if self.boundary.controls.stands_still:  # The weights are to be evaluated in the pause.
                        await self.commands.begin_evaluation()
                        return True
                    if self.gate.is_clear:
                        return True
                    await self.boundary.controls.wait_for_change_or(clearing)
                return False
            finally:
                clearing.cancel()

    async def settle(self) -> None:
        """Waits for the end of a step that a failure has interrupted, and reports the step. Raises nothing."""
        if self._taking is None:
            return
        was_interrupted = not self._taking.done()
        try:
            async with self.report.shown_alive("an error ended the attempt", lambda: "waiting for the step under way"):
                step = await self._taking
            if step is not None:
                self._report(step, None)
        except Exception as error:
            if was_interrupted or self._taking.exception() is None:  # Else it is the error that ends the run.
                _log.warning("the last step failed too, or could not be reported: %s", error)

    def abandon(self) -> None:
        """Cancels a step that is still under way, where its learner is lost."""
        if self._taking is not None:
            self._taking.cancel()

    async def _take(self, groups: Sequence[JudgedGroup], timer: StepTimer) -> "_TakenStep | None":
        """Trains on groups and writes that to the ledger; returns None for a step that was not applied."""
        plan, kl = await self._plan(groups)
        skip_reason, learner_metrics = await self._train(groups, plan)
        if skip_reason:
            await self._skip(groups, skip_reason, plan)
            return None
        self.skipped.end_row()
        timer.trained()
        trainer_metrics = self.reward_kl.adapt(kl) | learner_metrics
        await self._write(groups, plan.trained, plan.dropped, plan.moments)
        self.record.policy_version = self.version.policy_version
        return _TakenStep(groups, plan, trainer_metrics, timer)

    def _report(self, step: "_TakenStep", publish: PublishReport | None) -> None:
        """Reports a step, once."""
        if self._taking is None:
            return
        self._taking = None
        timer = step.timer
        timer.published()
        publish_spans(step.plan.batch.groups, self.version.policy_version, timer.published_s)
        timer.finished()
        finished = FinishedStep(
            groups=step.groups,
            plan=step.plan,
            trainer=step.trainer_metrics,
            publish=publish,
            timer=timer,
            num_episodes=self.progress.num_episodes,
            num_excluded_prompts=self.prompt_order.num_excluded,
        )
        self.report.step(self.version.policy_version, self.metrics.of(finished), unscored_of(step.groups))
        self.report.completions(self.version.policy_version, step.groups)

    async def _plan(self, groups: Sequence[JudgedGroup]) -> tuple[StepPlan, RewardKl]:
        step_id = f"{self.version.weights.attempt}/{self.buffer.next_to_take}"
        async with self.learner_lock:
            kl = await self.reward_kl.measure(groups)
        plan = await asyncio.to_thread(
            plan_step, self.config(), groups, self.version.weights, step_id, kl, self.progress.reward_moments
        )
        return plan, kl

    async def _train(self, groups: Sequence[JudgedGroup], plan: StepPlan) -> tuple[str, dict[str, float]]:
        """Trains the learner; returns why the step was not applied, empty if it was, and the learner's metrics."""
        if not plan.batch.groups:
            return empty_reason(groups), {}
        sleeps = self.config().generator.sleep_while_training
        async with self.learner_lock:
            if sleeps:
                await self.publisher.sleep()
            result = await self.learner.train_step(plan.batch)
            self.version.weights = result.version
            if sleeps:
                await self.publisher.wake()
        return result.skip_reason, dict(result.metrics)

    async def _skip(self, groups: Sequence[JudgedGroup], reason: str, plan: StepPlan) -> None:
        """Drops the groups of a step that was not applied. The version stays."""
        self.skipped.add(groups)
        wasted = [(group.order_number, DropReason.SKIPPED_STEP) for group in plan.trained]
        await self._write(groups, (), [*plan.dropped, *wasted], plan.moments)
        await self.buffer.release()
        unscored = unscored_of(groups)
        num_in_a_row = self.skipped.num_in_a_row
        self.report.skipped_step(self.version.policy_version, reason, num_in_a_row, unscored, num_groups=len(groups))
        if self.version.policy_version > 0 and self.skipped.num_learned_groups:
            self.num_learned_groups = self.skipped.num_learned_groups
            self.boundary.controls.request_stop(StopMode.DRAIN)
        if not self.num_learned_groups:
            self.skipped.raise_if_too_many(reason, str(unscored or ""))

    async def _write(
        self,
        groups: Sequence[JudgedGroup],
        trained: Sequence[TrainedGroup],
        dropped: Sequence[tuple[int, DropReason]],
        moments: Moments,
    ) -> None:
        """Writes the end of a step to the ledger."""
        self.progress = Progress(
            policy_version=self.version.policy_version,
            next_order_number=self.buffer.next_to_take,
            num_episodes=self.progress.num_episodes + sum(len(group.settled.completions) for group in groups),
            kl_coef=self.reward_kl.coef,
            reward_moments=moments,
        )
        excluded = self.prompt_order.exclude_learned(groups)
        await self.ledger.step_done(self.progress, trained=trained, dropped=dropped, excluded=excluded)
