"""What a run says of itself: in its record, its events, `metrics.jsonl` and telemetry."""

import contextlib
import errno
import json
import math
from collections.abc import Mapping
from pathlib import Path

from services.coordinator.checkpoints import write_atomically
from services.coordinator.evaluation import EvaluationResult
from services.coordinator.events import EventLog
from services.coordinator.record import RunRecord, RunState
from shoal.errors import ShoalError
from shoal.telemetry import metrics, names


class Report:
    """Says each thing once, everywhere it has to be said."""

    def __init__(self, record: RunRecord, events: EventLog, num_steps: int) -> None:
        self._record = record
        self._events = events
        self._num_steps = num_steps
        self._metrics = MetricsFile(record.folder / "metrics.jsonl")

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
        self._metrics.keep_until(policy_version)
        self._record.policy_version = policy_version
        if self._record.attempt > 0:
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

    def evaluation(self, policy_version: int, result: EvaluationResult) -> None:
        """The held-out questions are answered."""
        self._events.add(
            "evaluation",
            f"the policy of step {policy_version} answers {result.correct_rate:.1%} of"
            f" {result.num_scored} held-out questions correctly",
            policy_version=policy_version,
            num_prompts=result.num_prompts,
            num_scored=result.num_scored,
            correct_rate=result.correct_rate,
            mean_reward=result.mean_reward,
        )

    def exported(self, policy_version: int, path: str) -> None:
        """The model is written."""
        self._events.add("exported", f"the model is in {path}", path=path, policy_version=policy_version)


class MetricsFile:
    """One JSON object a train step, in the order of the steps of the final lineage."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def keep_until(self, step: int) -> None:
        """Takes out the steps after one: a restore gives them up."""
        if self._path.exists():
            lines = [line for line in self._path.read_text().splitlines(keepends=True) if _step(line) <= step]
            write_atomically(self._path, "".join(lines))

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends the metrics of one step."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")


def _step(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError):
        return float("inf")  # The last line of a process that was killed.
