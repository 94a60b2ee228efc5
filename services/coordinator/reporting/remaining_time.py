"""The estimate of a run's remaining time, from its recent steps."""

import time
from collections import deque
from statistics import fmean

from shoal.config.live import LiveConfig

NUM_RECENT_STEPS = 10


class RemainingTime:
    """Estimates the time until a run's last step and evaluation. Time in which the run is paused does not count.

    A step is measured from the end of the previous step, so evaluations, checkpoints and skipped steps in between
    count. The first step is measured by itself, since loading and the first evaluation precede it.
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
        """Records a step that took `step_s` by itself; returns the estimate in seconds."""
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
