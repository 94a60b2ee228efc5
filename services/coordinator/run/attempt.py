"""An attempt of a run: the wiring of its parts, and its life from the first worker to the exported model.

Each attempt has a ledger, a sampler and weight versions of its own. Workers, requests and events are those of the run
(active_run.py), so generators and reward services stay loaded from one attempt to the next.
"""

import asyncio
import contextlib

from services.coordinator.remote.mirroring import Mirroring
from services.coordinator.remote.segment_check import SegmentCheck
from services.coordinator.reporting.report import Report
from services.coordinator.reporting.step_metrics import StepMetrics
from services.coordinator.rollout.buffer import PacingBuffer
from services.coordinator.rollout.circuit_breaker import CircuitBreaker
from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.rollout.episodes.environment_pool import EnvironmentPool
from services.coordinator.rollout.episodes.episode_sampler import EpisodeSampler
from services.coordinator.rollout.episodes.player import EpisodeParts
from services.coordinator.rollout.episodes.stage import Stages
from services.coordinator.rollout.groups import JudgedGroup
from services.coordinator.rollout.prompt_order import PromptOrder
from services.coordinator.rollout.sampler import Sampler
from services.coordinator.rollout.sampling_gate import SamplingGate
from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.run.checks.environment_check import prepare_environments
from services.coordinator.run.checks.label_check import unusable_prompts
from services.coordinator.run.checks.preflight import PreparedInputs
from services.coordinator.run.commands import RunCommands
from services.coordinator.run.config_updates import ConfigUpdates
from services.coordinator.run.controls import RunControls, StopMode
from services.coordinator.run.evaluation import Evaluations
from services.coordinator.run.exports import Exports
from services.coordinator.run.full_disk import FullDisk
from services.coordinator.run.loop import RunLoop, last_order_number
from services.coordinator.run.recovery import recover
from services.coordinator.run.saving import Saving
from services.coordinator.run.step_boundary import StepBoundary
from services.coordinator.run.train_steps import TrainSteps
from services.coordinator.store.events import EventLog
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.progress import Progress
from services.coordinator.store.run_record import RunRecord, RunState
from services.coordinator.training.reward_kl import RewardKlController
from services.coordinator.training.skipped_steps import SkippedSteps
from services.coordinator.workers.fleet import Fleet
from services.coordinator.workers.generator_pool import GeneratorPool
from services.coordinator.workers.learner_client import LearnerClient
from services.coordinator.workers.rewards.reward_pool import RewardPool
from services.coordinator.workers.weights.publisher import Publisher
from shoal.concurrency import first_error
from shoal.config.live import LiveConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import ShoalError
from shoal.grpo.staleness import capacity
from shoal.rollout import WeightVersion


class Attempt:
    """One attempt: connects its parts and drives them to the end of the run, or until the learner is lost."""

    def __init__(
        self,
        record: RunRecord,
        config: LiveConfig,
        inputs: PreparedInputs,
        *,
        updates: ConfigUpdates,
        mirroring: Mirroring,
        segment_check: SegmentCheck,
        controls: RunControls,
        commands: RunCommands,
        fleet: Fleet,
        report: Report,
        events: EventLog,
    ) -> None:
        self._record = record
        self._config = config
        self._inputs = inputs
        self._updates = updates
        self._mirroring = mirroring
        self._segment_check = segment_check
        self._checking: asyncio.Task[None] | None = None
        self._controls = controls
        self._commands = commands
        self._fleet = fleet
        self._report = report
        self._events = events
        self._version = CurrentVersion(WeightVersion(record.attempt, 0))
        self._full_disk = FullDisk(controls, commands, record.folder)
        self._ledger = Ledger(record.folder / "ledger.sqlite", record.attempt, self._full_disk.written)
        self._learner = LearnerClient(fleet, config, events)
        self._publisher = Publisher(
            config(), fleet, self._learner, events, self._next_weight_epoch, inputs.prompts.at(0).token_ids
        )
        generators = GeneratorPool(
            fleet,
            max_num_seqs=config().generator.max_num_seqs,
            wait_timeout_s=config().coordinator.worker_timeout_s,
            running_s=controls.running_s,
        )
        self._rewards = RewardPool(fleet, events, config(), controls.running_s)
        self._environments = EnvironmentPool(self._rewards)
        self._stages = Stages(config(), inputs.tokenizer, inputs.stop_token_ids, inputs.time_s)
        self._metrics = StepMetrics(
            config,
            num_prompts=len(inputs.prompts.prompts),
            generators=generators,
            rewards=self._rewards.utilization,
            running_s=controls.running_s,
        )
        self._checkpoints = Checkpoints(record.folder, mirroring, record.inputs)
        self._saving = self._make_saving()
        self._boundary = StepBoundary(controls, self._learner, self._saving)
        self._gate = SamplingGate(inflight_updates=config().weights.inflight_updates)
        self._episodes = self._make_episodes(generators)
        self._sampler = self._make_sampler(generators)
        self.evaluations = self._make_evaluations(generators)
        self._exports = Exports(
            config, record, controls, self._learner, self.evaluations, self._report, self._full_disk
        )

    async def _next_weight_epoch(self) -> int:
        """Returns an epoch that no broadcast group of this run has had. Waits while the disk is full."""

        async def reserve() -> int:
            return self._record.next_weight_epoch()

        return await self._full_disk.written(reserve)

    def _make_saving(self) -> Saving:
        return Saving(
            self._config,
            self._controls,
            self._record,
            self._version,
            self._checkpoints,
            self._learner,
            self._ledger,
            self._report,
            self._full_disk,
        )

    def _make_episodes(self, generators: GeneratorPool) -> EpisodeSampler:
        parts = EpisodeParts(
            self._config, self._environments, self._stages, self._controls.running_s, self._note_another_play
        )
        return EpisodeSampler(parts, self._controls, generators)

    def _make_sampler(self, generators: GeneratorPool) -> Sampler:
        return Sampler(
            self._config,
            self._record.run_id,
            self._version,
            self._controls,
            self._gate,
            generators=generators,
            rewards=self._rewards,
            episodes=self._episodes,
            breaker=CircuitBreaker(
                self._config().reward,
                self._events,
                self._commands.pause,
                resume_command=self._record.command("run resume"),
            ),
            ledger=self._ledger,
            events=self._events,
            tokenizer=self._inputs.tokenizer,
            stop_token_ids=self._inputs.stop_token_ids,
        )

    def _note_another_play(self, episode: str, reason: str) -> None:
        self._events.add("episode_replayed", f"the episode {episode} is played again: {reason}", episode=episode)

    def _make_evaluations(self, generators: GeneratorPool) -> Evaluations:
        return Evaluations(
            self._config,
            self._inputs.held_out,
            f"{self._record.run_id}/{self._record.attempt}",
            version=self._version,
            controls=self._controls,
            boundary=self._boundary,
            commands=self._commands,
            sampler=self._sampler,
            episodes=self._episodes,
            generators=generators,
            rewards=self._rewards,
            report=self._report,
        )

    async def run(self) -> RunState:
        """Drives the attempt; returns the state that the run ends in.

        Raises `FailedPrecondition` (LEARNER_LOST) when the learner is lost, which another attempt may outlive.
        """
        try:
            async with first_error(asyncio.TaskGroup()) as tasks:
                beside = [
                    tasks.create_task(self._fleet.raise_when_learner_is_lost()),
                    tasks.create_task(self._wake_when_learner_leaves()),
                    tasks.create_task(self._full_disk.guard()),
                ]
                state = await self._from_start_to_end()
                for task in beside:
                    task.cancel()
            return state
        except ShoalError as error:
            if error.reason == ErrorReason.LEARNER_LOST:
                await self._publisher.disband()
            raise
        finally:
            if self._checking is not None:
                self._checking.cancel()
            await self._saving.abandon()
            await self.evaluations.cancel()
            self._stages.close()
            with contextlib.suppress(ShoalError):
                await self._ledger.close()

    async def _wake_when_learner_leaves(self) -> None:
        """Lets the loop look up once the learner is about to leave: at a boundary it saves a checkpoint first."""
        await self._fleet.until_learner_leaves()
        self._controls.wake()

    async def _from_start_to_end(self) -> RunState:
        """Prepares, trains and evaluates, exports; returns the state that the run ends in."""
        self._fleet.begin_attempt()
        self._commands.attempt_begins(self._publisher, self._rewards)
        # Before the first prompt there is nothing to drain.
        loop = await self._controls.unless_stopped(self._prepare(), by=tuple(StopMode))
        if loop is None:
            return RunState.STOPPED
        self._commands.training_begins(self._version.policy_version)
        await loop.run()
        await self._saving.save()
        if self._controls.stop is StopMode.NOW:
            return RunState.STOPPED
        policy_version, num_steps = self._version.policy_version, self._config().run.num_steps
        learned = loop.why_learned()
        if learned and policy_version < num_steps:
            self._events.add(
                "prompts_learned",
                f"{learned}: the run ends after step {policy_version} of {num_steps}",
                num_prompts=loop.prompt_order.num_excluded,
                num_groups=loop.steps.num_learned_groups,
            )
        self._report.exported(policy_version, await self._full_disk.written(self._learner.export_model))
        return RunState.FINISHED if learned or policy_version >= num_steps else RunState.STOPPED

    async def _save_record(self) -> None:
        self._record.save()

    async def _prepare(self) -> RunLoop:
        """Waits for workers, recovers the run's state, publishes its version, and builds the loop from there."""
        await self._full_disk.written(self._save_record)  # No attempt after this one has its number.
        async with first_error(asyncio.TaskGroup()) as tasks:
            tasks.create_task(self._fleet.wait_until_ready())
            # Labels are checked while models load.
            labels = unusable_prompts(self._config().data, self._rewards, self._events, self._inputs)
            checking = tasks.create_task(labels)
        if self._record.attempt > 0:  # A service that served the run before has the code of that time.
            await self._rewards.reload_verifiers()
        self._inputs, too_long = await prepare_environments(
            self._config(), self._inputs, self._environments, self._stages, self._events
        )
        held_out = self._inputs.held_out.without("malformed_label", checking.result()).without("too_long", too_long)
        if held_out.lacks_questions:
            self._events.add("questions_left_out", str(held_out), left_out=dict(held_out.left_out))
        self.evaluations.ask(held_out)
        unusable = checking.result() | too_long
        loop = await self._recovered_loop(unusable)
        await self._publisher.publish(self._version.weights)
        await self._commands.follow_pause()
        return loop

    async def _recovered(self) -> Progress:
        """Recovers ledger and learner; returns where they are. What training does not need is checked beside it."""
        progress, manifest = await recover(
            self._record,
            self._version,
            self._checkpoints,
            self._ledger,
            self._learner,
            self._mirroring,
            report_damaged=self._report.checkpoint_damaged,
            written=self._full_disk.written,
        )
        if manifest is not None:
            self._checking = asyncio.create_task(self._segment_check.run(manifest.segments))
        checkpoint_id = manifest.checkpoint_id if manifest else ""
        await self._full_disk.written(lambda: self._report.restored(progress.policy_version, checkpoint_id))
        changed = self._updates.restored(progress.policy_version, await self._ledger.config())
        await self._ledger.config_changed(progress.policy_version, changed, self._updates.trained)
        return progress

    async def _recovered_loop(self, unusable: frozenset[str]) -> RunLoop:
        """Recovers ledger and learner, and builds the loop that continues from their state."""
        progress = await self._recovered()
        reward_kl = RewardKlController(self._config, self._learner)
        if progress.kl_coef is not None and self._config().kl.target is not None:
            reward_kl.coef = progress.kl_coef
        grpo = self._config().grpo
        buffer: PacingBuffer[JudgedGroup] = PacingBuffer(
            capacity=capacity(grpo.max_staleness, grpo.groups_per_step),
            groups_per_step=grpo.groups_per_step,
            max_refills=grpo.max_refill_groups,
            first_order_number=progress.next_order_number,
            last_order_number=lambda: last_order_number(self._config(), self._controls, self._version, buffer),
        )
        prompt_order = PromptOrder(
            self._inputs.prompts, await self._ledger.issue_state(), easy_rate=grpo.easy_rate, unusable=unusable
        )
        steps = TrainSteps(
            config=self._config,
            record=self._record,
            version=self._version,
            progress=progress,
            buffer=buffer,
            gate=self._gate,
            prompt_order=prompt_order,
            ledger=self._ledger,
            learner=self._learner,
            publisher=self._publisher,
            updates=self._updates,
            reward_kl=reward_kl,
            commands=self._commands,
            boundary=self._boundary,
            saving=self._saving,
            metrics=self._metrics,
            report=self._report,
            learner_lock=self._fleet.gpu_turns.learner_lock,
            skipped=SkippedSteps(self._config, prompt_order, look=self._record.folder_command("run rollouts")),
        )
        return RunLoop(
            config=self._config,
            controls=self._controls,
            version=self._version,
            prompt_order=prompt_order,
            sampler=self._sampler,
            buffer=buffer,
            steps=steps,
            metrics=self._metrics,
            boundary=self._boundary,
            saving=self._saving,
            exports=self._exports,
            evaluations=self.evaluations,
            fleet=self._fleet,
            publisher=self._publisher,
            commands=self._commands,
        )
