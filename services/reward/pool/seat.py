"""A seat in the pool: a process and its current job."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from services.reward.pool.job_queue import Job
from services.reward.pool.output import VerifierOutput
from services.reward.process.child_process import PoolProcess

_STOP_S, _STOP_AGAIN_S = 1.0, 0.1
"""Time after which a process that does not stop judging a completion is killed, and between repeated signals."""


@dataclass(eq=False)
class Seat:
    """A seat. Belongs to one event loop."""

    process: PoolProcess
    output: VerifierOutput
    job: Job | None = None
    is_ready: bool = False
    """Whether the process has started and takes jobs."""
    why_killed: str = ""
    is_stopping: bool = False
    """Whether the process was told to stop judging its job."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    _deadline: asyncio.TimerHandle | None = None
    _watch: asyncio.TimerHandle | None = None

    def set_deadline(self, seconds: float, give_up: Callable[[], None]) -> None:
        """Calls `give_up` after some time, instead of an earlier deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, give_up)

    def watch(self, seconds: float, look: Callable[[], None]) -> None:
        """Calls `look` after some time, instead of an earlier watch."""
        self.end_watch()
        self._watch = asyncio.get_running_loop().call_later(seconds, look)

    def end_watch(self) -> None:
        """Ends the watch."""
        if self._watch is not None:
            self._watch.cancel()

    def end_timers(self) -> None:
        """Ends deadline and watch."""
        self.end_watch()
        if self._deadline is not None:
            self._deadline.cancel()

    def stop(self) -> None:
        """Tells the process to stop judging its job, and kills it if it does not stop."""
        if not self.is_stopping and self.job is not None:
            self.is_stopping = True
            self._tell(self.job, asyncio.get_running_loop().time() + _STOP_S)

    def _tell(self, job: Job, until: float) -> None:
        # Repeat the signal: Python drops its exception in a destructor or in a callback of the garbage collector.
        loop = asyncio.get_running_loop()
        if self.job is not job or job.done.done() or self.why_killed:
            return
        if loop.time() < until:
            self.process.interrupt()
            loop.call_later(_STOP_AGAIN_S, self._tell, job, until)
        else:
            self.why_killed = "it did not stop judging a slow completion"
            self.process.kill()
