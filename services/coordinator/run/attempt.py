"""An attempt of a run: the connection of its parts, and its phases from the first worker to the exported model.

Each attempt has its own ledger, sampler and weight versions; active_run.py holds the parts that attempts share.
"""

import asyncio
import contextlib
from functools import partial

from services.coordinator.remote.mirroring import Mirroring
from services.coordinator.remote.segment_check import SegmentCheck
from services.coordinator.reporting.step_metrics import StepMetrics
from services.coordinator.rollout.buffer import PacingBuffer
from services.coordinator.rollout.circuit_breaker import CircuitBreaker
from services.coordinator.rollout.completions import CompletionSampler
from services.coordinator.rollout.episodes.episode_sampler import EpisodeSampler
from services.coordinator.rollout.episodes.stage import EpisodeParts, Stages
from services.coordinator.rollout.episodes.stream import EnvironmentPool
from services.coordinator.rollout.groups import JudgedGroup
from services.coordinator.rollout.prompt_order import PromptOrder
from services.coordinator.rollout.rollout_parts import RolloutParts, training_sampling
from services.coordinator.rollout.sampler import Sampler
from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.run.checks.environment_check import prepare_environments
from services.coordinator.run.checks.label_check import unusable_prompts
from services.coordinator.run.checks.preflight import PreparedInputs
from services.coordinator.run.config_updates import ConfigUpdates
from services.coordinator.run.controls import StopMode
from services.coordinator.run.evaluation import Evaluations
from services.coordinator.run.exports import Exports
from services.coordinator.run.full_disk import FullDisk
from services.coordinator.run.group_flow import GroupFlow, last_order_number
from services.coordinator.run.loop import RunLoop
from services.coordinator.run.policy import Policy
from services.coordinator.run.profiles import Profiles
from services.coordinator.run.recovery import recover
from services.coordinator.run.run_parts import RunParts
from services.coordinator.run.saving import Saving, StepBoundary
from services.coordinator.run.train_steps import TrainSteps
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.run_record import RunState
from services.coordinator.workers.generator_pool import GeneratorPool
from services.coordinator.workers.reward_pool import RewardPool
from shoal.concurrency import first_error
from shoal.error_reasons import ErrorReason
from shoal.errors import ShoalError


class Attempt:
    """One attempt: connects its parts and drives them to the end of the run, or until the learner is lost."""

    def __init__(
        self,
        run: RunParts,
        inputs: PreparedInputs,
        *,
        updates: ConfigUpdates,
        mirroring: Mirroring,
        segment_check: SegmentCheck,
    ) -> None:
        record, controls = run.record, run.controls
        self._run = run
        self._inputs = inputs
        self._updates = updates
        self._mirroring = mirroring
        self._segment_check = segment_check
        self._checking: asyncio.Task[None] | None = None
        self._full_disk = FullDisk(controls, run.commands, record.folder)
        self._ledger = Ledger(record.folder / "ledger.sqlite", record.attempt, self._full_disk.written)
        self._policy = Policy.of_attempt(run, self._full_disk, inputs.prompts.at(0).token_ids)
        self._episodes, self._rollout = _rollout_parts(run, inputs)
        self._metrics = StepMetrics(
            run.config,
            num_prompts=len(inputs.prompts.prompts),
            generators=self._rollout.generators,
            rewards=self._rollout.rewards.utilization,
            running_s=controls.running_s,
        )
        self._checkpoints = Checkpoints(record.folder, mirroring, record.inputs)
        self._saving = Saving(run, self._policy, self._checkpoints, self._ledger, self._full_disk)
        self.profiles = Profiles(run, self._policy.learner)
        self._boundary = StepBoundary(controls, run.fleet, self._saving)
        self.evaluations = Evaluations(run, self._rollout, self._policy.version, self._boundary, inputs.held_out)
        self._exports = Exports(run, self._policy.learner, self.evaluations, self._full_disk)

    async def run(self) -> RunState:
        """Drives the attempt; returns the run's final state. Raises `FailedPrecondition` (LEARNER_LOST) if the learner
        is lost. Another attempt may recover from that."""
        try:
            async with first_error(asyncio.TaskGroup()) as tasks:
                beside = [
                    tasks.create_task(self._run.fleet.raise_when_learner_is_lost()),
                    tasks.create_task(self._wake_when_learner_leaves()),
                    tasks.create_task(self._full_disk.guard()),
                ]
                state = await self._from_start_to_end()
                for task in beside:
                    task.cancel()
            return state
        except ShoalError as error:
            if error.reason == ErrorReason.LEARNER_LOST:
                await self._policy.publisher.disband()
            raise
        finally:
            if self._checking is not None:
                self._checking.cancel()
            self.profiles.close()
            await self._saving.abandon()
            await self.evaluations.cancel()
            self._episodes.stages.close()
            with contextlib.suppress(ShoalError):
                await self._ledger.close()

    async def _wake_when_learner_leaves(self) -> None:
        """Wakes the loop, which saves a checkpoint at a step boundary before the learner leaves."""
        await self._run.fleet.until_learner_leaves()
        self._run.controls.changed.notify()

    async def _from_start_to_end(self) -> RunState:
        """Prepares, trains and evaluates, exports; returns the run's final state."""
        self._run.fleet.begin_attempt()
        self._run.commands.attempt_begins(self._policy.publisher, self._rollout.rewards)
        # Before the first prompt there is nothing to drain.
        loop = await self._run.controls.unless_stopped(self._prepare(), by=tuple(StopMode))
        if loop is None:
            return RunState.STOPPED
        self._run.commands.training_begins(self._policy.step)
        await loop.drive()
        await self._saving.save()
        if self._run.controls.stop is StopMode.NOW:
            return RunState.STOPPED
        policy_version, num_steps = self._policy.step, self._run.config().run.num_steps
        learned = loop.why_learned()
        if learned and policy_version < num_steps:
            self._run.events.add(
                "prompts_learned",
                f"{learned}: the run ends after step {policy_version} of {num_steps}",
                num_prompts=loop.groups.prompt_order.num_excluded,
                num_groups=loop.steps.num_learned_groups,
            )
        self._run.report.exported(policy_version, await self._full_disk.written(self._policy.learner.export_model))
        return RunState.FINISHED if learned or policy_version >= num_steps else RunState.STOPPED

    async def _save_record(self) -> None:
        self._run.record.save()

    async def _prepare(self) -> RunLoop:
        """Waits for workers, recovers the run's state, publishes its policy, and builds the loop that continues it."""
        await self._full_disk.written(self._save_record)  # No later attempt has the same number.
        async with first_error(asyncio.TaskGroup()) as tasks:
            tasks.create_task(self._run.fleet.wait_until_ready())
            # Labels are checked while models load.
            labels = unusable_prompts(self._run.config().data, self._rollout.rewards, self._run.events, self._inputs)
            checking = tasks.create_task(labels)
        if self._run.record.attempt > 0:  # A service that served the run earlier has its earlier code.
            await self._rollout.rewards.reload_verifiers()
        self._inputs, too_long = await prepare_environments(self._run.config(), self._inputs, self._episodes)
        held_out = self._inputs.held_out.without("malformed_label", checking.result()).without("too_long", too_long)
        if held_out.lacks_questions:
            self._run.events.add("questions_left_out", str(held_out), left_out=dict(held_out.left_out))
        self.evaluations.held_out = held_out
        loop = await self._recovered_loop(checking.result() | too_long)
        await self._policy.publish()
        await self._run.commands.follow_pause()
        return loop

    async def _recovered(self) -> Progress:
        """Recovers ledger and learner; returns their progress. Starts the check of files that training does not use."""
        progress, manifest = await recover(
            self._run, self._policy, self._checkpoints, self._ledger, self._mirroring, self._full_disk
        )
        if manifest is not None:
            self._checking = asyncio.create_task(self._segment_check.run(manifest.segments))
        checkpoint_id = manifest.checkpoint_id if manifest else ""
        self._run.record.restored(progress.policy_version, checkpoint_id)
        await self._full_disk.written(self._run.report.restored)
        changed = self._updates.restored(progress.policy_version, await self._ledger.config())
        await self._ledger.config_changed(progress.policy_version, changed, self._updates.trained)
        return progress

    async def _recovered_loop(self, unusable: frozenset[str]) -> RunLoop:
        """Recovers ledger and learner, and builds the loop that continues from their state."""
        progress = await self._recovered()
        run, version, grpo = self._run, self._policy.version, self._run.config().grpo
        issued = await self._ledger.issue_state()
        prompt_order = PromptOrder(self._inputs.prompts, issued, easy_rate=grpo.easy_rate, unusable=unusable)
        breaker = CircuitBreaker(
            run.config().reward, run.events, run.commands.pause, resume_command=run.record.command("run resume")
        )
        sampler = Sampler(
            self._rollout,
            run.record.run_id,
            version,
            self._policy.gate,
            breaker=breaker,
            ledger=self._ledger,
            events=run.events,
        )
        buffer: PacingBuffer[JudgedGroup] = PacingBuffer(
            capacity=grpo.max_groups_in_flight,
            groups_per_step=grpo.groups_per_step,
            max_refills=grpo.max_refill_groups,
            first_order_number=progress.next_order_number,
            last_order_number=partial(last_order_number, run.config, run.controls, version),
        )
        groups = GroupFlow(prompt_order, sampler, buffer)
        steps = TrainSteps(
            run,
            self._policy,
            groups,
            self._boundary,
            ledger=self._ledger,
            progress=progress,
            updates=self._updates,
            metrics=self._metrics,
        )
        return RunLoop(
            run=run,
            policy=self._policy,
            groups=groups,
            steps=steps,
            boundary=self._boundary,
            saving=self._saving,
            exports=self._exports,
            evaluations=self.evaluations,
        )


def _rollout_parts(run: RunParts, inputs: PreparedInputs) -> tuple[EpisodeParts, RolloutParts]:
    """Connects the parts that sample and score to the workers of a run."""
    config, pause = run.config(), run.controls
    generators = GeneratorPool(
        run.fleet,
        max_num_seqs=config.generator.max_num_seqs,
        wait_timeout_s=config.coordinator.worker_timeout_s,
        running_s=pause.running_s,
    )
    rewards = RewardPool(run.fleet, run.events, config, pause.running_s)
    stages = Stages(config, inputs.tokenizer, inputs.stop_token_ids, inputs.time_s)
    episodes = EpisodeParts(run.config, pause, generators, EnvironmentPool(rewards), stages, run.events)
    return episodes, RolloutParts(
        run.config,
        pause,
        generators,
        CompletionSampler(run.config, pause, generators, inputs.tokenizer),
        EpisodeSampler(episodes),
        rewards,
        training_sampling(config, inputs.stop_token_ids),
    )
