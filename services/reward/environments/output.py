"""The printed output of an environment, as a limited number of log lines."""

import asyncio
import time
from collections.abc import Callable

from services.reward.pool.output import LineBudget, VerifierOutput
from services.reward.process.child_process import ChildProcess

BURST_BYTES, BYTES_PER_S = 4 << 20, 1 << 20
"""Limits of a process's output. If it prints more, it waits, so that the service can do other work."""


class BoundedOutput:
    """The output of one process, standard output and standard error, as it arrives."""

    def __init__(self, environment: str, process: ChildProcess, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = VerifierOutput(LineBudget(clock), environment)
        self._process, self._clock = process, clock
        self._allowed_bytes, self._since = float(BURST_BYTES), clock()

    def feed(self, data: bytes) -> None:
        """Takes data, and logs the complete lines. Pauses the process if it prints too much."""
        now = self._clock()
        self._allowed_bytes = min(BURST_BYTES, self._allowed_bytes + (now - self._since) * BYTES_PER_S) - len(data)
        self._since = now
        self._lines.feed(data)
        if self._allowed_bytes < 0 and not self._process.is_lost:
            self._process.pause_output()
            asyncio.get_running_loop().call_later(-self._allowed_bytes / BYTES_PER_S, self._resume)

    def end(self) -> None:
        """Logs the beginning of a line that will not be completed."""
        self._lines.end()

    def _resume(self) -> None:
        if not self._process.is_lost:
            self._process.resume_output()
