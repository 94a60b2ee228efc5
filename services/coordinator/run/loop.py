"""The run loop: this file is the system's table of contents.

    prompts -> issue -> sample -> score -> judge -> buffer -> train step -> publish -> slots released -> issue ...

Three loops run side by side while a run trains:

    loop             waits for                               unblocks
    _issue_groups    a free slot, and the run not paused     _train, with groups that have settled
    _train           the next groups in order                _issue_groups, by releasing slots after a publish
    _catch_up        generators without current weights      the generators, by publishing to them alone

`Fleet.manage` runs beside them and configures workers that join. An error in any of them ends the attempt. Workers may
join and leave without an error, except for the learner: if it is lost, another attempt begins (active_run.py).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from services.coordinator.reporting.step_metrics import StepTimer
from services.coordinator.rollout.filtering import judge_group
from services.coordinator.rollout.groups import JudgedGroup
from services.coordinator.run.controls import StopMode
from services.coordinator.run.evaluation import Evaluations
from services.coordinator.run.exports import Exports
from services.coordinator.run.group_flow import GroupFlow
from services.coordinator.run.policy import Policy
from services.coordinator.run.run_parts import RunParts
from services.coordinator.run.saving import Saving, StepBoundary
from services.coordinator.run.train_steps import TrainSteps
from services.coordinator.store import long_work
from services.coordinator.training.step_plan import handed_group
from shoal.concurrency import first_error


@dataclass(frozen=True, kw_only=True)
class RunLoop:
    """Trains a run from its recovered state to its last step, or until it must stop."""

    run: RunParts
    policy: Policy
    groups: GroupFlow
    steps: TrainSteps
    boundary: StepBoundary
    saving: Saving
    exports: Exports
    evaluations: Evaluations

    async def drive(self) -> None:
        """Runs the three loops until the last step is taken, or a stop is requested. After an error in a loop, writes a
        checkpoint if the learner can."""
        try:
            async with first_error(asyncio.TaskGroup()) as tasks:
                beside = {tasks.create_task(self._catch_up())}
                beside.add(tasks.create_task(self._issue_groups(tasks, beside)))
                await self._train()
                for task in beside:
                    task.cancel()
        except Exception:
            await self.steps.settle()
            await self.saving.try_to_save()
            raise
        finally:
            self.steps.abandon()

    async def _issue_groups(self, tasks: asyncio.TaskGroup, beside: set["asyncio.Task[None]"]) -> None:
        """Issues a prompt for each free slot, forever."""
        while True:
            await self.run.controls.unpaused()
            for order_number in await self._admitted():
                await self.run.controls.unpaused()
                task = tasks.create_task(self._run_group(order_number))
                beside.add(task)
                task.add_done_callback(beside.discard)

    def why_learned(self) -> str:
        """Describes how the policy has shown that it has nothing left to learn from its prompts; empty until then."""
        if self.groups.prompt_order.are_learned:
            return f"the policy has learned every prompt to grpo.easy_rate ({self.run.config().grpo.easy_rate:g})"
        if num_groups := self.steps.num_learned_groups:
            return f"all completions of the last {num_groups} groups are correct; harder questions are needed"
        return ""

    async def _admitted(self) -> Sequence[int]:
        """Waits for a free slot and returns its group; in a deterministic run, the groups of the next round.

        Once the policy has learned all prompts, the run trains on the groups in flight and ends.
        """
        is_round = self.run.config().run.deterministic
        order_numbers = await self.groups.buffer.admit_round() if is_round else [await self.groups.buffer.admit()]
        admitted = [number for number in order_numbers if self.groups.prompt_order.has(number)]
        if len(admitted) < len(order_numbers):
            await self.groups.buffer.withdraw(order_numbers[len(admitted)])
            self.run.controls.request_stop(StopMode.DRAIN)
        if is_round and admitted:
            self.groups.sampler.begin_round(admitted)
        return admitted

    async def _run_group(self, order_number: int) -> None:
        settled = await self.groups.sampler.run_group(order_number, *self.groups.prompt_order.next(order_number))
        group = judge_group(self.run.config(), settled)
        await self.groups.buffer.settle(order_number, group, has_signal=group.is_trained)
        if group.is_trained:
            attempt = self.policy.version.weights.attempt
            await self.policy.learner.hand_over.give(handed_group(group, attempt))

    async def _train(self) -> None:
        """Takes the next groups in order, trains, publishes, releases slots, saves and evaluates, to the last step."""
        self.steps.metrics.begin_training()
        await self.exports.write_if_due()
        await self.evaluations.run_if_due()
        while await self._has_another_step():
            timer, evaluated_s = StepTimer(self.run.controls.running_s), self.evaluations.blocked_s
            async with self.run.report.shown_alive(
                f"waiting for the groups of step {self.policy.step + 1}",
                self._describe_groups,
                first_after_s=long_work.SLOW_STEP_S,
            ):
                groups = await self._next_groups()
            if groups is None:
                break
            timer.groups_taken(evaluated_s=self.evaluations.blocked_s - evaluated_s)
            if await self.steps.take(groups, timer):
                await self._save_if_due()
            await self.exports.write_if_due()
            await self.evaluations.run_if_due()
        if self.run.controls.stop is StopMode.DRAIN:
            await self.saving.save()
            await self.evaluations.run_last()
        await self.run.controls.unless_stopped(self.evaluations.finish())

    async def _has_another_step(self) -> bool:
        """Returns whether steps are left, after changes of the number of steps are applied."""
        await self.steps.take_over_changes()
        self.steps.updates.is_closed = self.policy.step >= self.run.config().run.num_steps
        return not self.steps.updates.is_closed

    async def _save_if_due(self) -> None:
        """Writes a checkpoint if one is due, as it is after a run's final step, before its evaluation."""
        if self.policy.step == self.run.config().run.num_steps:
            await self.saving.save()
        else:
            await self.saving.save_if_due(self.run.config().checkpoint.every_steps)

    def _describe_groups(self) -> str:
        """Describes how many groups of the next step have settled. Returns nothing during a pause."""
        if self.run.controls.stands_still:
            return ""
        num_groups = self.groups.buffer.window_end - self.groups.buffer.next_to_take
        num_settled = num_groups - len(self.groups.buffer.waiting_for())
        settled = f"{num_settled} of {num_groups} are sampled and scored"
        return "; ".join(filter(None, [settled, self.run.fleet.describe_gap()]))

    async def _next_groups(self) -> Sequence[JudgedGroup] | None:
        """Waits at the boundary between two steps for the next groups; None when the run must stop.

        Changes of the configuration that arrived meanwhile are applied first, since a change may widen the window.
        """
        while True:
            goes_on = await self.boundary.wait_while_paused()
            has_settled = not self.groups.buffer.waiting_for()
            drained = self.run.controls.stop is StopMode.DRAIN and not self.groups.buffer.window_is_issued
            if not goes_on or (drained and not has_settled):
                return None
            if self.run.controls.evaluation_requests:
                await self.evaluations.run()
            elif not has_settled:
                await self._wait_for_window()
            elif self.steps.updates.waiting is not None:
                await self.steps.take_over_changes()
            else:
                return await self.groups.buffer.take()

    async def _wait_for_window(self) -> None:
        """Waits until the next step's window has settled, or for the next request."""
        settling = asyncio.create_task(self.groups.buffer.window_settles())
        try:
            await self.run.controls.wait_for_change_or(settling)
        finally:
            settling.cancel()

    async def _catch_up(self) -> None:
        """Publishes to generators that joined or missed a version, forever."""
        while True:
            if self.policy.publisher.has_late:
                await self.policy.catch_up()
                await self.run.commands.follow_pause()
            await self.run.fleet.changed.wait(1.0)
