"""An active run: the wiring of its parts, and its life from the first worker to the exported model."""

import asyncio
import contextlib
import logging

from services.coordinator.remote.mirroring import Mirroring
from services.coordinator.reporting.report import Report
from services.coordinator.reporting.step_metrics import StepMetrics
from services.coordinator.rollout.buffer import PacingBuffer
from services.coordinator.rollout.circuit_breaker import CircuitBreaker
from services.coordinator.rollout.controls import RunControls, StopMode
from services.coordinator.rollout.current_version import CurrentVersion
from services.coordinator.rollout.groups import JudgedGroup
from services.coordinator.rollout.prompt_order import PromptOrder
from services.coordinator.rollout.sampler import Sampler
from services.coordinator.rollout.sampling_gate import SamplingGate
from services.coordinator.run.checkpoints import Checkpoints
from services.coordinator.run.commands import RunCommands
from services.coordinator.run.config_updates import ConfigUpdates
from services.coordinator.run.evaluation import Evaluations
from services.coordinator.run.exports import Exports
from services.coordinator.run.label_check import unusable_prompts
from services.coordinator.run.loop import RunLoop, last_order_number
from services.coordinator.run.preflight import PreparedInputs
from services.coordinator.run.recovery import recover
from services.coordinator.run.step_boundary import StepBoundary
from services.coordinator.run.train_steps import TrainSteps
from services.coordinator.store.events import EventLog
from services.coordinator.store.ledger import Ledger
from services.coordinator.store.run_record import RunRecord, RunState
from services.coordinator.training.reward_kl import RewardKlController
from services.coordinator.workers.fleet import Fleet
from services.coordinator.workers.generator_pool import GeneratorPool
from services.coordinator.workers.learner_client import LearnerClient
from services.coordinator.workers.registry import WorkerRegistry
from services.coordinator.workers.reward_pool import RewardPool
from services.coordinator.workers.weights.publisher import Publisher
from shoal.concurrency import first_error
from shoal.config import RunConfig
from shoal.errors import FailedPrecondition, ShoalError
from shoal.grpo.staleness import capacity
from shoal.rollout import WeightVersion

_log = logging.getLogger(__name__)


class ActiveRun:
    """One run while it is active: connects its parts and drives them to the end."""

    def __init__(
        self, record: RunRecord, config: RunConfig, inputs: PreparedInputs, registry: WorkerRegistry, events: EventLog
    ) -> None:
        self.record = record
        self.events = events
        self._config, self._inputs = config, inputs
        self._controls, self._version = RunControls(), CurrentVersion(WeightVersion(record.attempt, 0))
        self.updates = ConfigUpdates(config, record, events, len(inputs.prompts))
        self._ledger = Ledger(record.folder / "ledger.sqlite", record.attempt)
        self._report = Report(record, events, config)
        self._fleet = Fleet(config, record.run_id, registry, events)
        self._learner = LearnerClient(self._fleet, config, events)
        self._publisher = Publisher(
            config, self._fleet, self._learner, events, record.next_weight_epoch, inputs.prompts.at(0).token_ids
        )
        generators = GeneratorPool(
            self._fleet, wait_timeout_s=config.coordinator.worker_timeout_s, running_s=self._controls.running_s
        )
        self._rewards = RewardPool(self._fleet, events, config, self._controls.running_s)
        self._metrics = StepMetrics(
            config,
            num_prompts=len(inputs.prompts.prompts),
            generators=generators.utilization,
            rewards=self._rewards.utilization,
            running_s=self._controls.running_s,
        )
        self.commands = RunCommands(self._controls, self._report, self._publisher, self._rewards)
        self._mirroring = Mirroring(config.checkpoint.mirror, record.folder, config.checkpoint.keep_last, events)
        self._checkpoints = Checkpoints(record.folder, config.checkpoint.keep_last, self._mirroring)
        self._boundary = StepBoundary(
            self._controls, record, self._version, self._checkpoints, self._learner, self._ledger, self._report
        )
        self._gate = SamplingGate(inflight_updates=config.weights.inflight_updates)
        self._sampler = Sampler(
            config,
            record.run_id,
            self._version,
            self._controls,
            self._gate,
            generators=generators,
            rewards=self._rewards,
            breaker=CircuitBreaker(config.reward, events, self.commands.pause),
            ledger=self._ledger,
            events=events,
            tokenizer=inputs.tokenizer,
            stop_token_ids=inputs.stop_token_ids,
        )
        self.evaluations = Evaluations(
            config,
            inputs.evaluation_prompts,
            f"{record.run_id}/{record.attempt}",
            version=self._version,
            controls=self._controls,
            boundary=self._boundary,
            commands=self.commands,
            sampler=self._sampler,
            generators=generators,
            rewards=self._rewards,
            report=self._report,
        )

    async def drive(self) -> None:
        """Drives the run to its end and reports the state that it ended in. Raises nothing."""
        try:
            state = await self._with_fleet()
            await self._mirroring.finish()
            self._report.state(state, f"{state.lower()} after step {self.record.policy_version}")
        except Exception as error:
            if not isinstance(error, (ShoalError, OSError)):
                _log.exception("a defect ended the run")
            await self._mirroring.finish()
            self._report.failure(error)
        finally:
            await self.evaluations.cancel()
            self._controls.refuse_requests(FailedPrecondition(f"the run has ended: {self.record.message}"))
            with contextlib.suppress(ShoalError):
                await self._ledger.close()
            await self._report.close()
            self.events.close()

    async def _with_fleet(self) -> RunState:
        """Drives the run while its fleet is managed; returns the state that it ends in."""
        async with first_error(asyncio.TaskGroup()) as tasks:
            managing = tasks.create_task(self._fleet.manage())
            state = await self._from_start_to_end()
            managing.cancel()
        return state

    async def _from_start_to_end(self) -> RunState:
        """Prepares, trains and evaluates, exports; returns the state that the run ends in."""
        self._report.state(RunState.STARTING, "waiting for workers and their models")
        # Before the first prompt there is nothing to drain.
        loop = await self._controls.unless_stopped(self._prepare(), by=tuple(StopMode))
        if loop is None:
            return RunState.STOPPED
        self.commands.training_begins(self._version.policy_version)
        await loop.run()
        await self._boundary.save_checkpoint()
        if self._controls.stop is StopMode.NOW:
            return RunState.STOPPED
        policy_version = self._version.policy_version
        self._report.exported(policy_version, await self._learner.export_model())
        return RunState.FINISHED if policy_version >= self._config.run.num_steps else RunState.STOPPED

    async def _prepare(self) -> RunLoop:
        """Waits for workers, recovers the run's state, publishes its version, and builds the loop from there."""
        async with first_error(asyncio.TaskGroup()) as tasks:
            tasks.create_task(self._fleet.wait_until_ready())
            # Labels are checked while models load.
            checking = tasks.create_task(unusable_prompts(self._config.data, self._rewards, self.events, self._inputs))
        if self.record.attempt > 0:  # A service that served the run before has the code of that time.
            await self._rewards.reload_verifiers()
        unusable = checking.result()
        self.evaluations.leave_out(unusable)
        loop = await self._recovered_loop(unusable)
        await self._publisher.publish(self._version.weights)
        await self.commands.stay_paused()
        return loop

    async def _recovered_loop(self, unusable: frozenset[str]) -> RunLoop:
        """Recovers ledger and learner, and builds the loop that continues from their state."""
        progress, checkpoint_id = await recover(
            self.record, self._version, self._checkpoints, self._ledger, self._learner
        )
        reward_kl = RewardKlController(self._config, self._learner)
        if progress.kl_coef is not None and self._config.kl.target is not None:
            reward_kl.coef = progress.kl_coef
        self._report.restored(progress.policy_version, checkpoint_id)
        grpo = self._config.grpo
        buffer: PacingBuffer[JudgedGroup] = PacingBuffer(
            capacity=capacity(grpo.max_staleness, grpo.groups_per_step),
            groups_per_step=grpo.groups_per_step,
            max_refills=grpo.max_refill_groups,
            first_order_number=progress.next_order_number,
            last_order_number=lambda: last_order_number(self._config, self._controls, self._version, buffer),
        )
        prompt_order = PromptOrder(
            self._inputs.prompts, await self._ledger.issue_state(), easy_rate=grpo.easy_rate, unusable=unusable
        )
        steps = TrainSteps(
            config=self._config,
            record=self.record,
            version=self._version,
            progress=progress,
            buffer=buffer,
            gate=self._gate,
            prompt_order=prompt_order,
            ledger=self._ledger,
            learner=self._learner,
            publisher=self._publisher,
            updates=self.updates,
            reward_kl=reward_kl,
            commands=self.commands,
            boundary=self._boundary,
            metrics=self._metrics,
            report=self._report,
            learner_lock=self._fleet.gpu_turns.learner_lock,
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
            exports=Exports(self._config, self.record, self._controls, self._learner, self.evaluations, self._report),
            evaluations=self.evaluations,
            fleet=self._fleet,
            publisher=self._publisher,
            commands=self.commands,
        )
