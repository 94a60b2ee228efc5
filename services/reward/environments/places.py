"""The places of an environment: the limit of open episodes, and the time at which refused episodes try again."""

import contextlib
import random
import time
from collections.abc import Callable, Iterator

from shoal.error_reasons import ErrorReason
from shoal.errors import ResourceExhausted
from shoal.telemetry import metrics, names

_FIRST_DURATION_S = 0.1
"""Assumed duration of an episode before any has ended. If too short, it costs calls; if too long, places stay empty."""
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 10.0
_SMOOTHING = 0.1
"""Weight of the newest episode in the running mean of durations, after the first episodes."""

_OPEN = metrics.gauge(names.ENVIRONMENT_OPEN)


class Places:
    """Counts the open episodes of one environment, and tells refused episodes when to try again."""

    def __init__(self, environment: str, num_places: int, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._environment = environment
        self._num_places = num_places
        self._now_s = now_s
        self._num_open = self._num_ended = 0
        self._mean_s = _FIRST_DURATION_S
        self._last_opened_s = 0.0
        """The time at which the last place was taken."""
        self._last_try_s = 0.0
        """The time at which the last refused episode may try again."""

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Takes a place for the block. Raises `ResourceExhausted`, with the time of a retry, if no place is free."""
        if self._num_open >= self._num_places:
            raise ResourceExhausted(
                f"{self._num_places} episodes of {self._environment} are open "
                f"(environments.{self._environment}.max_episodes)",
                reason=ErrorReason.QUEUE_FULL,
                retry_after_s=self._wait_s(),
            )
        began_s = self._last_opened_s = self._now_s()
        self._change_open(1)
        try:
            yield
        finally:
            self._change_open(-1)
            self._num_ended += 1
            weight = max(_SMOOTHING, 1 / self._num_ended)
            self._mean_s += weight * (self._now_s() - began_s - self._mean_s)

    def _wait_s(self) -> float:
        """Returns the wait before a retry. Episodes retry one after the other, as places become free."""
        now = self._now_s()
        # All open episodes have lasted at least as long as the newest of them, whatever earlier episodes took.
        duration_s = max(self._mean_s, now - self._last_opened_s)
        turn = max(self._last_try_s, now) + duration_s / self._num_places
        # Episodes that would wait longer also come at different times.
        latest = now + _MAX_RETRY_S * random.uniform(0.5, 1.0)
        self._last_try_s = min(max(turn, now + _MIN_RETRY_S), latest)
        return self._last_try_s - now

    def _change_open(self, by: int) -> None:
        self._num_open += by
        _OPEN.set(self._num_open, {names.ENVIRONMENT: self._environment})
