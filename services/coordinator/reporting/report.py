"""Reports of a run: in its events, `metrics.jsonl`, experiment trackers and telemetry."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager

from services.coordinator.reporting.evaluation_words import describe_evaluation
from services.coordinator.reporting.reward_parts import correct_by
from services.coordinator.reporting.run_times import EffectiveTime, RemainingTime
from services.coordinator.reporting.shown_completions import Judged, shown
from services.coordinator.reporting.telemetry import export_dropped_groups, export_step
from services.coordinator.reporting.trackers.trackers import Trackers
from services.coordinator.reporting.unscored import Unscored
from services.coordinator.rollout.evaluation.history import EVALUATIONS, EvaluationHistory
from services.coordinator.rollout.evaluation.result import EvaluationResult
from services.coordinator.rollout.groups import JudgedGroup
from services.coordinator.store.events import EVENTS, EventLog, follow_events
from services.coordinator.store.files.step_file import StepFile
from services.coordinator.store.long_work import shown_alive
from services.coordinator.store.run_record import RunRecord, RunState
from shoal.concurrency import to_the_end
from shoal.config.live import LiveConfig
from shoal.quantities import format_bytes, format_duration

_log = logging.getLogger(__name__)


class Report:
    """Reports each fact about a run once, in every place that shows it."""

    def __init__(self, record: RunRecord, events: EventLog, config: LiveConfig) -> None:
        """Must be called on the event loop. Failures of trackers are reported on this loop."""
        loop = asyncio.get_running_loop()
        self._trackers = Trackers(
            config(), record, lambda name, reason: _call_on(loop, self._tracker_failed, name, reason)
        )
        self._record = record
        self._events = events
        self._config = config
        self._metrics_file = StepFile(record.folder / "metrics.jsonl")
        self._evaluations = EvaluationHistory(record.folder / EVALUATIONS, config().reward.correct)
        self._evaluated: set[int] = set()
        self._remaining = RemainingTime(config)
        self._effective = EffectiveTime()

    async def look_back(self) -> None:
        """Processes the past events of a run that continues. Raises the errors of `read_events`."""
        effective = EffectiveTime()
        past = follow_events(self._record.folder / EVENTS, lambda: False, kinds=EffectiveTime.KINDS)
        async for event in past:
            effective.add(event)
        self._effective = effective

    def state(self) -> None:
        """Reports the state that the run has entered."""
        state = self._record.state
        self._effective.state(state, time.time())
        if state is RunState.PAUSED:
            self._remaining.paused()
        else:
            self._remaining.resumed()
        self._events.add("state", self._record.message, state=state.value, policy_version=self._record.policy_version)

    def restarting(self, reason: str, pause_s: float, max_restarts: int) -> None:
        """Reports that another attempt is about to begin automatically."""
        count = len(self._record.restart_reasons)
        self._events.add(
            "restarting",
            f"{reason}; attempt {self._record.attempt + 1} begins"
            + (f" in {format_duration(pause_s)}" if pause_s else "")
            + (f" (restart {count} of {max_restarts} without a new step)" if count > 1 else ""),
            reason=reason,
            attempt=self._record.attempt + 1,
            pause_s=pause_s,
            num_restarts=count,
            max_restarts=max_restarts,
        )

    def interrupted(self) -> None:
        """Reports that the coordinator ends, and that the run continues at the next start of the coordinator."""
        record = self._record
        self._events.add(
            "interrupted",
            record.message,
            policy_version=record.policy_version,
            checkpoint_id=record.last_checkpoint_id,
        )

    async def restored(self) -> None:
        """Reports the step at which an attempt begins, after the ledger and the learner are restored.

        First discards the metrics of later steps. Raises `ResourceExhausted` if the disk is too full to rewrite them.
        """
        policy_version, checkpoint_id = self._record.policy_version, self._record.last_checkpoint_id
        kept = await to_the_end(self._metrics_file.keep_until, policy_version)
        self._evaluated = {row["step"] for row in kept if "eval/num_prompts" in row}
        await to_the_end(self._evaluations.keep_until, policy_version)
        self._effective.restored(time.time())
        if self._record.attempt > 0:
            self._trackers.restored(policy_version)
            attempt, how = self._record.attempt, f"from {checkpoint_id}" if checkpoint_id else "there was no checkpoint"
            message = f"attempt {attempt} begins at step {policy_version} ({how})"
            self._events.add("restored", message, attempt=attempt, policy_version=policy_version)

    def step(self, step: int, metrics: dict[str, float], unscored: Unscored | None = None) -> dict[str, float]:
        """Reports a train step that is done and published, and its completions without a reward.

        Leaves out metrics that are NaN or infinite. Returns the reported metrics.
        """
        self._effective.step(step, time.time())
        metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        metrics["time/effective_share"] = self._effective.share
        num_steps = self._config().run.num_steps
        self._metrics_file.add(step, metrics)
        self._trackers.log(step, metrics)
        correct_rate = metrics.get("objective/verifiable_correct_rate")
        reward = f"reward {metrics.get('objective/scores', 0.0):.2f}"
        words = reward if correct_rate is None else f"{correct_rate:.1%} correct"
        export_step(step, metrics)
        self._events.add(
            "step",
            f"step {step}/{num_steps}: {words}" + (f"; {unscored}" if unscored else ""),
            step=step,
            num_steps=num_steps,
            remaining_s=self._remaining.after_step(step, metrics["time/step"]),
            metrics=metrics,
            correct_by=correct_by(self._config().reward, metrics),
            **({"unscored": unscored.attributes()} if unscored else {}),
        )
        return metrics

    def completions(self, step: int, groups: Iterable[JudgedGroup]) -> None:
        """Shows some completions of a train step, if the configuration asks for them at this step."""
        every = self._config().tracking.completions_every_steps
        if every and step % every == 0:
            settled = [group.settled for group in groups]
            self._show("completions", step, [(group.prompt, group.completions, group.scores) for group in settled])

    def _show(self, name: str, step: int, judged: Iterable[Judged]) -> None:
        chosen = shown(judged, self._config().tracking.num_completions)
        if chosen:
            rows = [completion.row() for completion in chosen]
            self._trackers.log_table(step, name, rows)
            texts = "\n".join(map(str, chosen))
            self._events.add("completions", f"{name} of step {step}:\n{texts}", step=step, name=name, completions=rows)

    def skipped_step(
        self, policy_version: int, reason: str, num_in_a_row: int, unscored: Unscored | None = None, *, num_groups: int
    ) -> None:
        """Reports a step that was not applied, and its completions without a reward. All its groups are dropped."""
        export_dropped_groups(num_groups)
        count = f" ({num_in_a_row} in a row)" if num_in_a_row > 1 else ""
        self._events.add(
            "step_skipped",
            f"step {policy_version + 1} was skipped{count}: {reason}" + (f"; {unscored}" if unscored else ""),
            policy_version=policy_version,
            reason=reason,
            num_in_a_row=num_in_a_row,
            **({"unscored": unscored.attributes()} if unscored else {}),
        )

    def checkpoint(
        self,
        checkpoint_id: str,
        policy_version: int,
        duration_s: float,
        pause_s: float,
        num_bytes: int,
        best_step: int | None = None,
    ) -> None:
        """Reports a committed checkpoint, and the best checkpoint's step if known. Training waited for `pause_s`."""
        self._events.add(
            "checkpoint",
            f"checkpoint {checkpoint_id} is written: {format_bytes(num_bytes)} in {duration_s:.1f} s"
            f" (training waited {pause_s:.1f} s)"
            + (f"; the best checkpoint so far is from step {best_step}" if best_step is not None else ""),
            checkpoint_id=checkpoint_id,
            policy_version=policy_version,
            duration_s=duration_s,
            pause_s=pause_s,
            num_bytes=num_bytes,
            best_step=best_step,
        )

    def checkpoint_failed(self, policy_version: int, why: str) -> None:
        """Reports a checkpoint for which the disk was too full. The run continues, and tries again later."""
        self._events.add(
            "checkpoint_failed",
            f"the checkpoint of step {policy_version} could not be written: {why}; training continues without it",
            policy_version=policy_version,
            reason=why,
        )

    def checkpoint_damaged(self, checkpoint_id: str, why: str) -> None:
        """Reports a checkpoint that cannot be restored. The mirror's or the previous checkpoint is tried next."""
        self._events.add(
            "checkpoint_damaged",
            f"checkpoint {checkpoint_id} is damaged: {why}; trying another checkpoint",
            checkpoint_id=checkpoint_id,
            reason=why,
        )

    def segment_damaged(self, name: str, why: str, source: str) -> None:
        """Reports a damaged segment, and the mirror from which the segment was restored, if a mirror had it."""
        lost = "the data of its used-up groups are lost, and the run continues"
        cure = f"the segment was replaced by the copy in {source}" if source else lost
        self._events.add(
            "segment_damaged", f"segment {name} is damaged: {why}; {cure}", segment=name, reason=why, taken_from=source
        )

    def shown_alive(
        self, work: str, state: Callable[[], str], *, first_after_s: float | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Shows from time to time that long work still runs; see `services.coordinator.store.long_work`."""
        return shown_alive(self._events, work, state, first_after_s=first_after_s)

    def has_evaluated(self, policy_version: int) -> bool:
        """Returns whether the policy of a step was evaluated in the present lineage of the run."""
        return policy_version in self._evaluated

    def evaluation(self, result: EvaluationResult) -> None:
        """Reports the result of an evaluation, and its change since the run's first evaluation."""
        step = result.version.policy_version
        change = self._evaluations.add(step, result.correct_rates, self._record.inputs.get("evaluation.sources"))
        metrics = result.metrics() | (change.metrics() if change else {})
        self._evaluated.add(step)
        self._remaining.evaluated(result.sampling_s)
        self._metrics_file.add(step, metrics)
        self._trackers.log(step, metrics)
        if self._config().tracking.completions_every_steps:
            self._show("eval_completions", step, [(q.prompt, q.completions, q.scores) for q in result.answered])
        low, high = result.correct_rate_interval
        reward_low, reward_high = result.mean_reward_interval or (result.mean_reward, result.mean_reward)
        self._events.add(
            "evaluation",
            describe_evaluation(self._config().reward, result, metrics, change),
            policy_version=step,
            attempt=result.version.attempt,
            num_prompts=len(result.answered),
            left_out=dict(result.left_out),
            num_scored=len(result.scored),
            correct_rate=result.correct_rate,
            correct_rate_low=low,
            correct_rate_high=high,
            mean_reward=result.mean_reward,
            mean_reward_low=reward_low,
            mean_reward_high=reward_high,
            correct_by=correct_by(self._config().reward, metrics),
            metrics=metrics,
            **({"change": change.attributes()} if change else {}),
        )

    def values_of(self, metric: str) -> dict[int, float]:
        """Returns a metric's values by step. Leaves out discarded steps, and evaluations of former questions."""
        values = {row["step"]: row[metric] for row in self._metrics_file.read() if metric in row}
        if not metric.startswith("eval/"):
            return values
        asked = self._record.inputs.get("evaluation.sources", {})
        return {step: value for step, value in values.items() if self._evaluations.is_comparable(step, asked)}

    def export_kept(self, path: str, kept_steps: list[int], best_step: int | None, *, metric: str) -> None:
        """Reports the export of the last step, the exports that are kept, and the best export by `metric`."""
        step = self._record.policy_version
        best = f"; no export has {metric} yet, so the best export is unknown" if metric else ""
        if best_step is not None:
            best = f"; the best export so far is from step {best_step}"
        self._events.add(
            "step_exported",
            f"the model of step {step} is in {path}{best}",
            path=path,
            policy_version=step,
            kept_steps=kept_steps,
            best_step=best_step,
        )

    def exported(self, policy_version: int, path: str) -> None:
        """Reports the folder of the exported model."""
        self._events.add("exported", f"the model is in {path}", path=path, policy_version=policy_version)

    def _tracker_failed(self, name: str, reason: str) -> None:
        self._events.add("tracker_failed", f"{name} failed: {reason}; the run continues without it", tracker=name)

    async def close(self) -> None:
        """Waits for the trackers at the end of the run."""
        await asyncio.to_thread(self._trackers.close, failed=self._record.state is RunState.FAILED)


def _call_on(loop: asyncio.AbstractEventLoop, call: Callable[[str, str], None], name: str, reason: str) -> None:
    """Calls a function on the event loop, from another thread. Does nothing after the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, name, reason)
