"""Train steps: plan, train, write to the ledger, publish, report."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from services.coordinator.reporting.step_metrics import FinishedStep, StepMetrics, StepTimer
from services.coordinator.reporting.telemetry import publish_spans
from services.coordinator.reporting.unscored import unscored_of
from services.coordinator.rollout.filtering import judge_group
from services.coordinator.rollout.groups import DropReason, JudgedGroup
from services.coordinator.run.config_updates import ConfigUpdates
from services.coordinator.run.controls import StopMode
from services.coordinator.run.group_flow import GroupFlow
from services.coordinator.run.policy import Policy
from services.coordinator.run.run_parts import RunParts
from services.coordinator.run.saving import StepBoundary
from services.coordinator.store import long_work
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.training.reward_kl import RewardKl, RewardKlController
from services.coordinator.training.skipped_steps import SkippedSteps, empty_reason
from services.coordinator.training.step_plan import StepPlan, plan_step
from services.coordinator.workers.weights.publisher import PublishReport
from shoal.quantities import counted

_log = logging.getLogger(__name__)


class TrainSteps:
    """Takes the train steps of a run, one after the other, and keeps its progress."""

    def __init__(
        self,
        run: RunParts,
        policy: Policy,
        groups: GroupFlow,
        boundary: StepBoundary,
        *,
        ledger: Ledger,
        progress: Progress,
        updates: ConfigUpdates,
        metrics: StepMetrics,
    ) -> None:
        """Continues from `progress`, which was read from the ledger."""
        self.updates = updates
        self.metrics = metrics
        self.num_learned_groups = 0
        """Number of groups that ended the run because all their completions are right; else 0."""
        self._run = run
        self._policy = policy
        self._groups = groups
        self._boundary = boundary
        self._ledger = ledger
        self._progress = progress
        self._reward_kl = RewardKlController(run.config, policy.learner)
        if progress.kl_coef is not None and run.config().kl.target is not None:
            self._reward_kl.coef = progress.kl_coef
        look = run.record.folder_command("run rollouts")
        self._skipped = SkippedSteps(run.config, groups.prompt_order, look=look)
        self._taking: asyncio.Task[FinishedStep | None] | None = None
        """The step that is not reported yet."""

    async def take(self, groups: Sequence[JudgedGroup], timer: StepTimer) -> bool:
        """Takes one step over groups, and publishes its weights; returns whether it was applied.

        Raises `FailedPrecondition` when too many steps in a row were not applied (`SkippedSteps`).
        """
        # The learner finishes a step that it has begun, so its end is written even if the run fails in the meantime.
        self._taking = asyncio.create_task(self._take(groups, timer))
        step = await asyncio.shield(self._taking)
        if step is None:
            return False
        publish = None
        with self._policy.gate.closed():
            if await self._may_publish(step):  # A run that stops needs no publish, but its step is reported.
                publish = await self._policy.publish()
                await self._run.commands.stay_paused()
        await self._groups.buffer.release()
        self._report(step, publish)
        return True

    async def take_over_changes(self) -> None:
        """Applies changes of the configuration that wait for the next step; first writes a checkpoint.

        So a restore never goes back to a step before a change. Groups that were judged before the change are judged
        again, so that the training data of a step depends only on its configuration, as after a restore.
        """
        while (waiting := self.updates.waiting) is not None:  # Others may be requested meanwhile.
            if self._policy.step > 0:
                await self._boundary.saving.save()
            async with self._policy.lock:
                await self._policy.learner.set_hyperparameters(self._run.record.run_id, waiting)
            fields = self.updates.apply(waiting, self._policy.step)
            await self._ledger.config_changed(self._policy.step, fields, self.updates.trained)
            if "kl.coef" in fields:
                self._reward_kl.coef = self._run.config().kl.coef
            await self._groups.buffer.judge_again(self._judge_again)

    def _judge_again(self, group: JudgedGroup) -> tuple[JudgedGroup, bool]:
        again = judge_group(self._run.config(), group.settled)
        return again, again.is_trained

    async def _may_publish(self, step: FinishedStep) -> bool:
        """Waits while the run is paused, and until the gate is clear; returns False when the run must stop now.

        Reports the step before a checkpoint that is requested meanwhile, since a restore would not repeat the step.
        """
        controls, gate = self._run.controls, self._policy.gate
        async with self._run.report.shown_alive(
            "the publish waits until nothing is being sampled (weights.inflight_updates = false)",
            lambda: "" if controls.stands_still else f"{counted(gate.num_inside, 'group')} being sampled",
            first_after_s=long_work.SLOW_STEP_S,
        ):
            clearing = asyncio.create_task(gate.cleared())
            try:
                while await self._boundary.wait_while_paused(before_checkpoint=lambda: self._report(step, None)):
                    if controls.stands_still:  # The weights are to be evaluated in the pause.
                        await self._run.commands.begin_evaluation()
                        return True
                    if gate.is_clear:
                        return True
                    await controls.wait_for_change_or(clearing)
                return False
            finally:
                clearing.cancel()

    async def settle(self) -> None:
        """Waits for the end of a step that a failure has interrupted, and reports the step. Raises nothing."""
        if self._taking is None:
            return
        was_interrupted = not self._taking.done()
        try:
            async with self._run.report.shown_alive(
                "an error ended the attempt", lambda: "waiting for the end of the running step"
            ):
                step = await self._taking
            if step is not None:
                self._report(step, None)
        except Exception as error:
            if was_interrupted or self._taking.exception() is None:  # Else it is the error that ends the run.
                _log.warning("the last step failed too, or could not be reported: %s", error)

    def abandon(self) -> None:
        """Cancels a running step if its learner is lost."""
        if self._taking is not None:
            self._taking.cancel()

    async def _take(self, groups: Sequence[JudgedGroup], timer: StepTimer) -> FinishedStep | None:
        """Trains on groups, and records the step in the ledger. Returns None for a step that was not applied."""
        plan, kl = await self._plan(groups)
        skip_reason, learner_metrics = await self._train(groups, plan)
        if skip_reason:
            await self._skip(groups, skip_reason, plan)
            return None
        self._skipped.end_row()
        timer.trained()
        trainer_metrics = self._reward_kl.adapt(kl) | learner_metrics
        await self._write(groups, plan)
        self._run.record.step_taken(self._policy.step)
        return FinishedStep(
            groups=groups,
            plan=plan,
            trainer=trainer_metrics,
            publish=None,
            timer=timer,
            num_episodes=self._progress.num_episodes,
            num_excluded_prompts=self._groups.prompt_order.num_excluded,
        )

    def _report(self, step: FinishedStep, publish: PublishReport | None) -> None:
        """Reports a step exactly once."""
        if self._taking is None:
            return
        self._taking = None
        timer = step.timer
        timer.published()
        publish_spans(step.plan.batch.groups, self._policy.step, timer.published_s)
        timer.finished()
        metrics = self.metrics.of(replace(step, publish=publish))
        metrics = self._run.report.step(self._policy.step, metrics, unscored_of(step.groups))
        self._run.record.step_trained(self._policy.step, metrics)
        self._run.report.completions(self._policy.step, step.groups)

    async def _plan(self, groups: Sequence[JudgedGroup]) -> tuple[StepPlan, RewardKl]:
        step_id = f"{self._policy.version.weights.attempt}/{self._groups.buffer.next_to_take}"
        async with self._policy.lock:
            kl = await self._reward_kl.measure(groups)
        config, version, moments = self._run.config(), self._policy.version.weights, self._progress.reward_moments
        plan = await asyncio.to_thread(plan_step, config, groups, version, step_id, kl, moments)
        return plan, kl

    async def _train(self, groups: Sequence[JudgedGroup], plan: StepPlan) -> tuple[str, dict[str, float]]:
        """Trains the learner. Returns why the step was not applied (empty if it was), and the learner's metrics."""
        if not plan.batch.groups:
            return empty_reason(groups), {}
        sleeps = self._run.config().generator.sleep_while_training
        result = await self._policy.train(plan.batch, generators_sleep=sleeps)
        return result.skip_reason, dict(result.metrics)

    async def _skip(self, groups: Sequence[JudgedGroup], reason: str, plan: StepPlan) -> None:
        """Drops the groups of a step that was not applied. The policy version stays unchanged."""
        self._skipped.add(groups)
        wasted = [(group.order_number, DropReason.SKIPPED_STEP) for group in plan.trained]
        await self._write(groups, replace(plan, trained=(), dropped=(*plan.dropped, *wasted)))
        await self._groups.buffer.release()
        unscored = unscored_of(groups)
        num_in_a_row = self._skipped.num_in_a_row
        self._run.report.skipped_step(self._policy.step, reason, num_in_a_row, unscored, num_groups=len(groups))
        if self._policy.step > 0 and self._skipped.num_learned_groups:
            self.num_learned_groups = self._skipped.num_learned_groups
            self._run.controls.request_stop(StopMode.DRAIN)
        if not self.num_learned_groups:
            self._skipped.raise_if_too_many(reason, str(unscored or ""))

    async def _write(self, groups: Sequence[JudgedGroup], plan: StepPlan) -> None:
        self._progress = Progress(
            policy_version=self._policy.step,
            next_order_number=self._groups.buffer.next_to_take,
            num_episodes=self._progress.num_episodes + sum(len(group.settled.completions) for group in groups),
            kl_coef=self._reward_kl.coef,
            reward_moments=plan.moments,
        )
        excluded = self._groups.prompt_order.exclude_learned(groups)
        await self._ledger.step_done(self._progress, trained=plan.trained, dropped=plan.dropped, excluded=excluded)
