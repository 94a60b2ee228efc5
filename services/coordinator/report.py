"""What a run says of itself: in its record, its events, `metrics.jsonl` and telemetry."""

import asyncio
import contextlib
import errno
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from services.coordinator.checkpoints import write_atomically
from services.coordinator.evaluation_result import EvaluationResult
from services.coordinator.events import EventLog
from services.coordinator.record import RunRecord, RunState
from services.coordinator.trackers import Trackers
from shoal.config import RunConfig
from shoal.errors import ShoalError
from shoal.telemetry import metrics, names


class Report:
    """Says each thing once, everywhere it has to be said."""

    def __init__(self, record: RunRecord, events: EventLog, config: RunConfig) -> None:
        """To be made on the event loop, which trackers are heard on when they fail."""
        loop = asyncio.get_running_loop()
        self._trackers = Trackers.for_run(
            config, record, lambda name, reason: _later(loop, self._tracker_failed, name, reason)
        )
        self._record = record
        self._events = events
        self._num_steps = config.run.num_steps
        self._metrics = MetricsFile(record.folder / "metrics.jsonl")
        self._evaluated: set[int] = set()

    def state(self, state: RunState, message: str) -> None:
        """The run has entered a state."""
        self._record.state, self._record.message = state, message
        with contextlib.suppress(OSError):  # On a full disk the run still says in its events how it ended.
            self._record.save()
        self._events.add("state", message, state=state.value, policy_version=self._record.policy_version)

    def failure(self, error: Exception) -> None:
        """The run has ended by an error; says how to go on, if there is a checkpoint."""
        if isinstance(error, ShoalError):
            message = error.message
        elif isinstance(error, OSError):
            message = (
                f"the disk is full: {error}" if error.errno == errno.ENOSPC else f"{type(error).__name__}: {error}"
            )
        else:
            message = f"a defect in the coordinator, its log says more: {type(error).__name__}: {error}"
        if checkpoint_id := self._record.last_checkpoint_id:
            message += f"; resume from {checkpoint_id} with: shoal train --resume {self._record.run_id}"
        self.state(RunState.FAILED, message)

    def restored(self, policy_version: int, checkpoint_id: str) -> None:
        """Ledger and learner stand where an attempt begins. Metrics of steps beyond are given up."""
        self._evaluated = self._metrics.keep_until(policy_version)
        self._record.policy_version = policy_version
        if self._record.attempt > 0:
            self._trackers.restored(policy_version)
            self._events.add(
                "restored",
                f"attempt {self._record.attempt} begins at step {policy_version}"
                f" ({checkpoint_id or 'there was no checkpoint'})",
                attempt=self._record.attempt,
                policy_version=policy_version,
            )

    def step(self, step: int, figures: dict[str, float]) -> None:
        """A train step is done, and published. Figures that JSON has no number for are left out."""
        figures = {name: value for name, value in figures.items() if math.isfinite(value)}
        self._record.policy_version = step
        self._record.metrics = figures
        self._record.save()
        self._metrics.add(step, figures)
        self._trackers.log(step, figures)
        rate = figures.get("objective/verifiable_correct_rate", 0.0)
        metrics.gauge(names.RUN_POLICY_VERSION).set(step)
        metrics.gauge(names.RUN_CORRECT_RATE).set(rate)
        metrics.histogram(names.RUN_STEP).record(figures["time/step"])
        metrics.histogram(names.RUN_STEP_WAIT).record(figures["time/waiting_for_groups"])
        metrics.histogram(names.RUN_PUBLISH).record(figures["time/publishing"])
        self._events.add(
            "step",
            f"step {step}/{self._num_steps}: {rate:.1%} correct",
            step=step,
            num_steps=self._num_steps,
            metrics=figures,
        )

    def skipped_step(self, policy_version: int, reason: str) -> None:
        """A step was not applied; the version stays."""
        self._events.add(
            "step_skipped",
            f"step {policy_version + 1} was skipped: {reason}",
            policy_version=policy_version,
            reason=reason,
        )

    def checkpoint(self, checkpoint_id: str, policy_version: int, duration_s: float) -> None:
        """A checkpoint is committed."""
        self._record.last_checkpoint_id = checkpoint_id
        self._record.save()
        self._events.add(
            "checkpoint",
            f"checkpoint {checkpoint_id} is written",
            checkpoint_id=checkpoint_id,
            policy_version=policy_version,
            duration_s=duration_s,
        )

    def has_evaluated(self, policy_version: int) -> bool:
        """Whether the policy of a step was evaluated in the lineage that the run is in."""
        return policy_version in self._evaluated

    def evaluation(self, result: EvaluationResult) -> None:
        """The held-out questions are answered."""
        step, figures = result.version.policy_version, result.metrics()
        self._evaluated.add(step)
        self._metrics.add(step, figures)
        self._trackers.log(step, figures)
        pass_at_k = ", ".join(f"pass@{k} {rate:.1%}" for k, rate in result.pass_at_k.items() if k > 1)
        self._events.add(
            "evaluation",
            f"the policy of step {step} answers {result.correct_rate:.1%} of {len(result.answered)} held-out questions"
            f" correctly{f' ({pass_at_k})' if pass_at_k else ''}",
            policy_version=step,
            attempt=result.version.attempt,
            num_prompts=len(result.answered),
            num_scored=len(result.scored),
            correct_rate=result.correct_rate,
            mean_reward=result.mean_reward,
            metrics=figures,
        )

    def exported(self, policy_version: int, path: str) -> None:
        """The model is written."""
        self._events.add("exported", f"the model is in {path}", path=path, policy_version=policy_version)

    def _tracker_failed(self, name: str, reason: str) -> None:
        self._events.add("tracker_failed", f"{name} failed, the run goes on without it: {reason}", tracker=name)

    async def close(self) -> None:
        """The run has ended: waits for the trackers."""
        await asyncio.to_thread(self._trackers.close, failed=self._record.state is RunState.FAILED)


def _later(loop: asyncio.AbstractEventLoop, call: Callable[[str, str], None], name: str, reason: str) -> None:
    """Calls on the event loop, from another thread; not at all once the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, name, reason)


class MetricsFile:
    """One JSON object a train step and one an evaluation, in the order of the steps of the final lineage."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def keep_until(self, step: int) -> set[int]:
        """Takes out the lines of steps after one: a restore gives them up. Returns the steps evaluated until then."""
        if not self._path.exists():
            return set()
        kept = [(line, row) for line, row in self._rows() if row["step"] <= step]
        write_atomically(self._path, "".join(line for line, _ in kept))
        return {row["step"] for _, row in kept if "eval/num_prompts" in row}

    def _rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for line in self._path.read_text().splitlines(keepends=True):
            # The last line may be of a process that was killed.
            with contextlib.suppress(json.JSONDecodeError):
                yield line, json.loads(line)

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends the metrics of one step, or of the evaluation of its policy."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")
