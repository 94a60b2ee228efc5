"""The times of a run: how much of its time led to new steps, and how much time is left."""

import time
from collections import deque
from collections.abc import Iterable
from statistics import fmean

from services.coordinator.store.run_record import RunState
from shoal.config.live import LiveConfig
from shoal.v1 import coordinator_pb2 as pb

NUM_RECENT_STEPS = 10
_STILL = (RunState.PAUSED, RunState.FINISHED, RunState.STOPPED, RunState.FAILED)


class EffectiveTime:
    """Follows the events of a run. Times are in seconds since the epoch.

    Effective time is the share of a run's time in which it takes steps that no attempt has taken before. The rest is
    start-up, the steps that a restore discards, their repetition, and the time without enough processes. Pauses and the
    time between an end and a resume do not count at all.
    """

    KINDS = ("state", "restored", "step")
    """The kinds of events that change the times."""

    def __init__(self, events: Iterable[pb.RunEvent] = ()) -> None:
        """`events` has all past events, in order."""
        self._now_s: float | None = None
        self._stands_still = False
        self._since_s: float | None = None
        """The value of `run_s` when the current step began; None without a step."""
        self._furthest_step = 0
        self.run_s = 0.0
        """Time that the run was active and not paused."""
        self.effective_s = 0.0
        """The part of `run_s` that led to new steps."""
        for event in events:
            self.add(event)

    def add(self, event: pb.RunEvent) -> None:
        """Processes an event. Events of other kinds change nothing."""
        time_s = event.event_time.ToNanoseconds() / 1e9
        if event.kind == "state":
            self.state(RunState(str(event.attributes["state"])), time_s)
        elif event.kind == "restored":
            self.restored(time_s)
        elif event.kind == "step":
            self.step(int(event.attributes.fields["step"].number_value), time_s)

    def state(self, state: RunState, time_s: float) -> None:
        """Processes a change of the run's state."""
        self._advance(time_s)
        self._stands_still = state in _STILL
        if state is RunState.RUNNING and self._since_s is None:
            self._since_s = self.run_s

    def restored(self, time_s: float) -> None:
        """Processes the beginning of another attempt."""
        self._advance(time_s)
        self._since_s = None

    def step(self, step: int, time_s: float) -> None:
        """Processes a completed step."""
        self._advance(time_s)
        if step > self._furthest_step:
            self._furthest_step = step
            self.effective_s += self.run_s - (self.run_s if self._since_s is None else self._since_s)
        self._since_s = self.run_s

    @property
    def share(self) -> float:
        """The effective part of the run's time, from 0 to 1; 0 before the first step."""
        return self.effective_s / self.run_s if self.run_s else 0.0

    def _advance(self, time_s: float) -> None:
        if self._now_s is not None and not self._stands_still:
            self.run_s += max(0.0, time_s - self._now_s)
        self._now_s = time_s


class RemainingTime:
    """Estimates the time until a run's last step and evaluation. Time in which the run is paused does not count.

    A step is measured from the end of the previous step, so evaluations, checkpoints and skipped steps in between
    count. The first step is measured by its own duration, since loading and the first evaluation precede that step.
    """

    def __init__(self, config: LiveConfig) -> None:
        self._config = config
        self._recent_s: deque[float] = deque(maxlen=NUM_RECENT_STEPS)
        self._evaluation_s = 0.0
        self._stepped_at: float | None = None
        self._paused_at: float | None = None
        self._paused_s = 0.0

    def paused(self) -> None:
        """Records that the run is paused."""
        if self._paused_at is None:
            self._paused_at = time.monotonic()

    def resumed(self) -> None:
        """Records that the run is not paused, or no longer paused."""
        if self._paused_at is not None:
            self._paused_s += time.monotonic() - self._paused_at
            self._paused_at = None

    def evaluated(self, duration_s: float) -> None:
        """Records the duration of an evaluation."""
        self._evaluation_s = duration_s

    def after_step(self, step: int, step_s: float) -> float:
        """Records a step whose own duration is `step_s`. Returns the estimate in seconds."""
        now, is_paused = time.monotonic(), self._paused_at is not None
        self.resumed()
        self._recent_s.append(step_s if self._stepped_at is None else now - self._stepped_at - self._paused_s)
        self._stepped_at, self._paused_s = now, 0.0
        if is_paused:
            self.paused()
        num_steps = self._config().run.num_steps
        if step >= num_steps:
            return 0.0
        ends_with_evaluation = self._config().evaluation.is_due(num_steps, num_steps)
        return fmean(self._recent_s) * (num_steps - step) + self._evaluation_s * ends_with_evaluation
