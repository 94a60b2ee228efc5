"""A seat in the pool: a process and its current job."""

import asyncio
from collections.abc import Callable

from services.reward.pool.job_queue import Job
from services.reward.process.child_process import ChildProcess

_STOP_S, _STOP_AGAIN_S = 1.0, 0.1
"""Time after which a process that does not stop judging a completion is killed, and between repeated signals."""


class Seat(ChildProcess):
    """A process of the pool."""

    job: Job | None = None
    is_stopping = False
    """Whether the process was told to stop judging its job."""
    _watch: asyncio.TimerHandle | None = None

    def watch(self, seconds: float, look: Callable[[], None]) -> None:
        """Calls `look` after some time, instead of an earlier watch."""
        self.end_watch()
        self._watch = asyncio.get_running_loop().call_later(seconds, look)

    def end_watch(self) -> None:
        """Ends the watch."""
        if self._watch is not None:
            self._watch.cancel()

    def stop(self) -> None:
        """Tells the process to stop judging its job, and kills it if it does not stop."""
        if not self.is_stopping and self.job is not None:
            self.is_stopping = True
            self._tell(self.job, asyncio.get_running_loop().time() + _STOP_S)

    def _tell(self, job: Job, until: float) -> None:
        # Repeat the signal: Python drops its exception in a destructor or in a callback of the garbage collector.
        loop = asyncio.get_running_loop()
        if self.job is not job or job.done.done() or self.is_lost:
            return
        if loop.time() < until:
            self.interrupt()
            loop.call_later(_STOP_AGAIN_S, self._tell, job, until)
        else:
            self.kill("it did not stop judging a slow completion")
