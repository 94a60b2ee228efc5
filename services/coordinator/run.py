"""The run loop: this file is the system's table of contents.

    prompts -> issue -> sample -> score -> buffer -> train step -> publish -> slots released -> issue ...

Three loops run side by side while a run trains; each says what it waits for and what it lets go on:

    loop             waits for                               lets go on
    _issue_groups    a free slot, and the run not paused     _train, with groups that have settled
    _train           the next groups in order                _issue_groups, by releasing slots after a publish
    _catch_up        generators without current weights      the generators, by publishing to them alone

`Fleet.manage` runs beside them and configures workers that come. An error in any of them ends the run, with the
reason in its record; workers that come and go are no errors.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence

from services.coordinator.buffer import PacingBuffer
from services.coordinator.checkpoints import Checkpoints, set_aside
from services.coordinator.controls import RunControls, StopMode
from services.coordinator.evaluation import Evaluations
from services.coordinator.events import EventLog
from services.coordinator.fleet import Fleet
from services.coordinator.generators import Generators
from services.coordinator.judgement import drop_reason
from services.coordinator.labels import unusable_prompts
from services.coordinator.learner import Learner
from services.coordinator.ledger import Ledger, Progress
from services.coordinator.preflight import PreparedInputs
from services.coordinator.prompt_order import PromptOrder
from services.coordinator.publisher import Publisher, PublishReport
from services.coordinator.record import RunRecord, RunState
from services.coordinator.reference import Reference
from services.coordinator.report import Report
from services.coordinator.rewards import Rewards
from services.coordinator.rollout_metrics import rollout_metrics
from services.coordinator.sampling import Sampler, SettledGroup
from services.coordinator.step import RewardKl, StepPlan, TrainedGroup, plan_step
from services.coordinator.step_figures import StepFigures, answer_figures, publish_figures, reward_figures
from services.coordinator.step_spans import publish_spans
from services.coordinator.tasks import first_error
from services.coordinator.workers import WorkerRegistry
from shoal.config import RunConfig
from shoal.errors import FailedPrecondition, ShoalError
from shoal.grpo.moments import Moments
from shoal.grpo.staleness import capacity
from shoal.rollout import WeightVersion
from shoal.telemetry import metrics, names

_log = logging.getLogger(__name__)


class ActiveRun:
    """One run while it is active: wires its parts together and drives them to its end."""

    def __init__(
        self, record: RunRecord, config: RunConfig, inputs: PreparedInputs, registry: WorkerRegistry, events: EventLog
    ) -> None:
        self.record = record
        self.config = config
        self.controls = RunControls()
        self.events = events
        self.ledger = Ledger(record.folder / "ledger.sqlite", record.attempt)
        self._inputs = inputs
        self._began = time.monotonic()
        self._version = WeightVersion(record.attempt, 0)
        self._num_skipped = 0
        self._num_episodes = 0
        self._moments = Moments()
        self._learner_steps = asyncio.Lock()
        """Held during a step and a catch-up: behind a step, the learner would broadcast newer weights than it says."""
        self._checkpoints = Checkpoints(record.folder, keep_last=config.checkpoint.keep_last)
        self._report = Report(record, events, config)
        self._fleet = Fleet(config, record.run_id, registry, events)
        self._learner = Learner(self._fleet, config)
        self._publisher = Publisher(
            config, self._fleet, self._learner, events, record.next_weight_epoch, inputs.prompts.at(0).token_ids
        )
        self._generators = Generators(self._fleet, wait_timeout_s=config.coordinator.worker_timeout_s)
        self._rewards = Rewards(self._fleet, events, config)
        self._figures = StepFigures(self._generators.occupancy, self._rewards.occupancy)
        self._sampler = Sampler(
            config,
            record.run_id,
            record.attempt,
            generators=self._generators,
            rewards=self._rewards,
            ledger=self.ledger,
            events=events,
            tokenizer=inputs.tokenizer,
            stop_token_ids=inputs.stop_token_ids,
            policy_version=lambda: self._version.policy_version,
            pause=self.pause,
            unpaused=self.controls.unpaused,
        )
        self.evaluations = Evaluations(
            config,
            inputs.evaluation_prompts,
            f"{record.run_id}/{record.attempt}",
            sampler=self._sampler,
            generators=self._generators,
            rewards=self._rewards,
            report=self._report,
            controls=self.controls,
        )
        self._reference = Reference(config, self._learner)
        self._buffer: PacingBuffer[SettledGroup]
        self._order: PromptOrder

    async def drive(self) -> None:
        """Runs to the end, whichever it is, and says in the record which it was. Raises nothing."""
        try:
            await self._with_fleet()
            stopped = self.controls.stop is not None and self._version.policy_version < self.config.run.num_steps
            state = RunState.STOPPED if stopped else RunState.FINISHED
            self._report.state(state, f"{state.lower()} after step {self._version.policy_version}")
        except Exception as error:
            if not isinstance(error, (ShoalError, OSError)):
                _log.exception("the run ended by a defect")
            self._report.failure(error)
        finally:
            await self.evaluations.give_up()
            self.controls.refuse_requests(FailedPrecondition(f"the run has ended: {self.record.message}"))
            with contextlib.suppress(ShoalError):
                await self.ledger.close()
            await self._report.close()
            self.events.close()

    async def _with_fleet(self) -> None:
        """Drives the run while its fleet is managed."""
        async with first_error(asyncio.TaskGroup()) as tasks:
            managing = tasks.create_task(self._fleet.manage())
            await self._from_start_to_end()
            managing.cancel()

    async def _from_start_to_end(self) -> None:
        """Prepares, trains and evaluates, exports."""
        self._report.state(RunState.STARTING, "waiting for workers and their models")
        if await self.controls.unless_stopped(self._prepare()) is None:
            return
        if not self.controls.is_paused and self.controls.stop is None:
            self._report.state(RunState.RUNNING, f"training from step {self._version.policy_version}")
        await self._train_while_sampling()
        await self._save_checkpoint()
        if self.controls.stop is None:
            await self._export()

    async def _prepare(self) -> WeightVersion:
        """Waits for workers, takes everything to where the run goes on, and publishes; returns that version."""
        async with first_error(asyncio.TaskGroup()) as tasks:
            tasks.create_task(self._fleet.wait_until_ready())
            # While models load.
            checking = tasks.create_task(unusable_prompts(self.config.data, self._rewards, self.events, self._inputs))
        self.evaluations.leave_out(checking.result())
        progress = await self._restore()
        self._buffer = PacingBuffer(
            capacity=capacity(self.config.grpo.max_staleness, self.config.grpo.groups_per_step),
            groups_per_step=self.config.grpo.groups_per_step,
            max_refills=self.config.grpo.max_refill_groups,
            first_order_number=progress.next_order_number,
            last_order_number=self._last_order_number,
        )
        issued = await self.ledger.issue_state()
        self._order = PromptOrder(
            self._inputs.prompts,
            easy_rate=self.config.grpo.easy_rate,
            given=issued.given,
            next_position=issued.next_position,
            excluded=issued.excluded,
            left_out=checking.result(),
        )
        await self._publish()
        return self._version

    async def _restore(self) -> Progress:
        """Opens the ledger, and on a resume takes ledger and learner back to the last checkpoint."""
        attempt, path = self.record.attempt, self.record.folder / "ledger.sqlite"
        checkpoint_id = ""
        if attempt > 0:
            committed = self._checkpoints.committed()
            if committed:
                checkpoint_id = committed[-1]
                manifest = self._checkpoints.load_manifest(checkpoint_id)
                await asyncio.to_thread(self._checkpoints.restore_ledger, manifest, path, attempt)
                self._version = await self._learner.load_checkpoint(checkpoint_id, manifest.learner_files, attempt)
            else:
                await asyncio.to_thread(set_aside, path, attempt)
                self._version = await self._learner.load_checkpoint("", (), attempt)
        else:
            self._version = await self._learner.version()
        progress = await self.ledger.open()
        if self._version != WeightVersion(attempt, progress.policy_version):
            raise FailedPrecondition(
                f"the learner is at version {self._version}, the ledger at {attempt}.{progress.policy_version}: restart"
                " the learner and resume the run"
            )
        self._num_episodes = progress.num_episodes
        if progress.kl_coef is not None:
            self._reference.coef = progress.kl_coef
        self._moments = progress.reward_moments
        self._report.restored(progress.policy_version, checkpoint_id)
        return progress

    async def _train_while_sampling(self) -> None:
        """Runs the three loops until the last step is taken, or a stop is asked for."""
        async with first_error(asyncio.TaskGroup()) as tasks:
            beside = {tasks.create_task(self._catch_up())}
            beside.add(tasks.create_task(self._issue_groups(tasks, beside)))
            await self._train()
            for task in beside:
                task.cancel()

    async def _issue_groups(self, tasks: asyncio.TaskGroup, beside: set["asyncio.Task[None]"]) -> None:
        """Issues a prompt for each slot that is free, for ever."""
        while True:
            await self.controls.unpaused()
            order_number = await self._buffer.admit()
            await self.controls.unpaused()
            task = tasks.create_task(self._run_group(order_number))
            beside.add(task)
            task.add_done_callback(beside.discard)

    async def _run_group(self, order_number: int) -> None:
        group = await self._sampler.run_group(order_number, *self._order.next(order_number))
        await self._buffer.settle(order_number, group, has_signal=not drop_reason(self.config, group))

    async def _train(self) -> None:
        """Takes the next groups in order, steps, publishes, releases, evaluates; until the last step."""
        self._figures.begin()
        await self.evaluations.hold_if_due(self._version, self._hold_while_paused)
        while self._version.policy_version < self.config.run.num_steps:
            began, held_s = time.monotonic(), self.evaluations.held_s
            groups = await self._next_groups()
            if groups is None:
                return
            held_s = self.evaluations.held_s - held_s
            await self._step(groups, waited_s=time.monotonic() - began - held_s)
            if not self._num_skipped and self._checkpoint_is_due:
                await self._save_checkpoint()
            await self.evaluations.hold_if_due(self._version, self._hold_while_paused)
        await self.controls.unless_stopped(self.evaluations.finish())

    @property
    def _checkpoint_is_due(self) -> bool:
        """After the step that was just taken; the last one is saved before its policy is evaluated."""
        step = self._version.policy_version
        return step % self.config.checkpoint.every_steps == 0 or step == self.config.run.num_steps

    async def _next_groups(self) -> Sequence[SettledGroup] | None:
        """Waits at the boundary between two steps; None when the run is to stop."""
        taking = asyncio.create_task(self._buffer.take())
        try:
            while True:
                goes_on = await self._hold_while_paused()
                drained = self.controls.stop is StopMode.DRAIN and not self._buffer.window_is_issued
                # What is taken already is trained on; the window is the next step's then.
                if not goes_on or (drained and not taking.done()):
                    return None
                if self.controls.evaluation_requests:
                    await self.evaluations.hold(self._version, self._hold_while_paused)
                    continue
                if taking.done():
                    return taking.result()
                await self.controls.wait_for_change_or(taking)
        finally:
            taking.cancel()

    async def _hold_while_paused(self) -> bool:
        """Returns when the run is not paused; False when it is to stop now.

        Checkpoints that are asked for are written here, where ledger and learner agree.
        """
        while True:
            while requests := self.controls.checkpoint_requests:
                await self._answer_checkpoint_request(requests[0])
                del requests[0]  # Not before: what ends the run meanwhile is its answer.
            if self.controls.stop is StopMode.NOW:
                return False
            if not self.controls.is_paused:
                return True
            await self.controls.wait_for_change()

    async def _step(self, groups: Sequence[SettledGroup], waited_s: float) -> None:
        """One train step and the publish of what came of it."""
        began = time.monotonic()
        plan, kl = await self._plan(groups)
        skip_reason, figures = await self._train_on(plan)
        if skip_reason:
            await self._skip_step(groups, skip_reason)
            return
        self._num_skipped = 0
        trained_s = time.monotonic() - began
        figures = self._reference.adapt(kl) | figures
        await self._write_step(groups, plan.trained, plan.dropped)
        self.record.policy_version = self._version.policy_version
        published = None
        if await self._hold_while_paused():  # A run that stops needs no publish, but its step is reported.
            published = await self._publish()
        published_s = time.monotonic() - began - trained_s
        publish_spans(plan.batch.groups, self._version.policy_version, published_s)
        await self._buffer.release()
        figures |= publish_figures(published) if published else {}
        figures |= {
            "time/waiting_for_groups": waited_s,
            "time/training": trained_s,
            "time/publishing": published_s,
            "time/step": time.monotonic() - began + waited_s,
            "time/from_scratch": time.monotonic() - self._began,
        }
        self._report_step(groups, plan, figures)

    async def _plan(self, groups: Sequence[SettledGroup]) -> tuple[StepPlan, RewardKl]:
        """What is trained on and with which advantages, and the reference's part in it."""
        step_id = f"{self._version.attempt}/{self._buffer.next_to_take}"
        async with self._learner_steps:
            kl = await self._reference.measure(groups)
        plan = await asyncio.to_thread(plan_step, self.config, groups, self._version, step_id, kl, self._moments)
        self._moments = plan.moments
        return plan, kl

    async def _train_on(self, plan: StepPlan) -> tuple[str, dict[str, float]]:
        """Has the learner take the step; why it was not applied, if so, and the learner's figures."""
        if not plan.batch.groups:
            return plan.why_nothing, {}
        sleeps = self.config.generator.sleep_while_training
        async with self._learner_steps:
            if sleeps:
                await self._publisher.sleep()
            result = await self._learner.train_step(plan.batch)
            self._version = result.version
        if result.skip_reason and sleeps:
            await self._publisher.wake()  # A step that was applied is published, which wakes them.
        return result.skip_reason, dict(result.metrics)

    def _report_step(self, groups: Sequence[SettledGroup], plan: StepPlan, figures: dict[str, float]) -> None:
        """Adds to the step's figures what its groups and the run so far say, and reports them."""
        figures = rollout_metrics(self.config, groups, plan) | figures
        figures |= {
            "episode": float(self._num_episodes),
            "epoch": (max(group.position for group in groups) + 1) / len(self._inputs.prompts.prompts),
            "batch/no_resampled_prompts": float(self._order.num_excluded),
            "batch/total_prompts": float(len(self._inputs.prompts.prompts)),
        }
        figures |= answer_figures(groups) | reward_figures(figures)
        figures |= self._figures.rates(
            num_step_tokens=figures.get("val/num_step_tokens", 0.0), waited_s=figures["time/waiting_for_groups"]
        )
        metrics.counter(names.RUN_GROUPS).add(len(plan.trained), {names.STATE: "TRAINED"})
        metrics.counter(names.RUN_GROUPS).add(len(groups) - len(plan.trained), {names.STATE: "DROPPED"})
        self._report.step(self._version.policy_version, figures)

    async def _skip_step(self, groups: Sequence[SettledGroup], reason: str) -> None:
        """Gives up the groups of a step that was not applied. The version stays."""
        self._num_skipped += 1
        skipped = [(group.order_number, "skipped_step") for group in groups if not group.drop_reason]
        await self._write_step(groups, (), skipped)
        await self._buffer.release()
        self._report.skipped_step(self._version.policy_version, reason)
        if self._num_skipped >= self.config.grpo.max_skipped_steps:
            raise FailedPrecondition(
                f"{self._num_skipped} steps in a row were skipped (grpo.max_skipped_steps): {reason}",
                reason="STEPS_SKIPPED",
            )

    async def _write_step(
        self, groups: Sequence[SettledGroup], trained: Sequence[TrainedGroup], dropped: Sequence[tuple[int, str]]
    ) -> None:
        self._num_episodes += sum(len(group.completions) for group in groups)
        await self.ledger.step_done(
            policy_version=self._version.policy_version,
            trained=[(group.order_number, group.staleness, group.rollouts) for group in trained],
            dropped=dropped,
            next_order_number=self._buffer.next_to_take,
            num_episodes=self._num_episodes,
            excluded=self._order.exclude_learned(groups),
            kl_coef=self._reference.coef,
            reward_moments=self._moments,
        )

    async def _catch_up(self) -> None:
        """Publishes to generators that joined, or missed a version; for ever."""
        while True:
            if any(not member.serving for member in self._fleet.generators):
                async with self._learner_steps:
                    await self._publisher.catch_up(self._version)
                await self._stay_paused()
            await self._fleet.wait_for_change(timeout_s=1.0)

    async def _publish(self) -> PublishReport:
        report = await self._publisher.publish(self._version)
        await self._stay_paused()
        return report

    async def _stay_paused(self) -> None:
        """A publish lets generators sample; if the run was paused meanwhile, they have to stop again."""
        if self.controls.is_paused:
            await self._publisher.pause()

    async def pause(self, why: str = "paused") -> None:
        """Holds the run: nothing is issued, sampling stops where it is, no step is begun."""
        if not self.controls.is_paused:
            self.controls.pause()
            self._sampler.run_was_paused()
            self._report.state(RunState.PAUSED, why)
            await self._publisher.pause()

    async def resume(self) -> None:
        """Lets a paused run go on."""
        if self.controls.is_paused:
            # First: a publish that ends meanwhile must not pause the generators behind this, nor a run that ends
            # meanwhile be entered as running.
            self.controls.resume()
            if self.controls.stop is None:
                self._report.state(RunState.RUNNING, "resumed")
            else:
                self._report.state(RunState.STOPPING, f"stopping ({self.controls.stop})")
            await self._publisher.resume()

    async def stop(self, mode: StopMode) -> None:
        """Asks the run to end."""
        was_paused = self.controls.is_paused
        self.controls.ask_to_stop(mode)
        self._report.state(RunState.STOPPING, f"stopping ({self.controls.stop})")
        if was_paused and mode is StopMode.DRAIN:
            await self._publisher.resume()

    async def save_checkpoint(self) -> str:
        """Has a checkpoint written at the next step boundary, and waits for it."""
        return await self.controls.ask_for_checkpoint()

    async def _answer_checkpoint_request(self, request: "asyncio.Future[str]") -> None:
        try:
            checkpoint_id = await self._save_checkpoint()
        except ShoalError as error:
            if not request.cancelled():
                request.set_exception(error)
        else:
            if not request.cancelled():
                request.set_result(checkpoint_id)

    async def _save_checkpoint(self) -> str:
        began = time.monotonic()
        checkpoint_id = await self._checkpoints.save(
            self._learner, self.ledger, attempt=self.record.attempt, policy_version=self._version.policy_version
        )
        if checkpoint_id == self.record.last_checkpoint_id:
            return checkpoint_id  # Nothing has happened since.
        self._report.checkpoint(checkpoint_id, self._version.policy_version, time.monotonic() - began)
        return checkpoint_id

    async def _export(self) -> None:
        self._report.exported(self._version.policy_version, await self._learner.export_model())

    def _last_order_number(self) -> int:
        """Beyond which group the run needs none: the steps still to take, or what was in flight when it drained."""
        if self.controls.stop is StopMode.DRAIN and self._buffer.window_is_issued:
            return self._buffer.window_end - 1
        if self.controls.stop is not None:
            return -1
        steps_to_take = self.config.run.num_steps - self._version.policy_version
        num_groups = steps_to_take * self.config.grpo.groups_per_step + self._buffer.num_refills
        return self._buffer.next_to_release + num_groups - 1
