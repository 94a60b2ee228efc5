"""Processes that are replaced when they end."""

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from services.reward.process.child_process import ChildProcess
from shoal.errors import Unavailable

_log = logging.getLogger(__name__)

Process = TypeVar("Process", bound=ChildProcess)


class Supervisor(Generic[Process]):
    """Replaces each process that ends with another process. Belongs to one event loop. The pauses between starts grow
    while processes cannot be started, or end before they are ready."""

    def __init__(
        self,
        kind: str,
        make: Callable[[], Process],
        begin: Callable[[Process], None],
        *,
        backoff_s: tuple[float, float],
        on_failed_start: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`begin` is called with each process that has been started. `backoff_s` has half of the first pause, and
        the longest pause. `on_failed_start` is called with the reason if a replacement cannot be started."""
        self._kind, self._make, self._begin = kind, make, begin
        self._min_backoff_s, self._max_backoff_s = backoff_s
        self._on_failed_start = on_failed_start
        self._replacing: set[asyncio.Task[None]] = set()
        self.all_gone = asyncio.Event()
        """Set while there is no process."""
        self.all_gone.set()
        self.processes: list[Process] = []
        self.is_closing = False
        self.failed_starts = 0
        """Number of failed starts since a process was ready. The owner sets it to 0 when a process is ready."""
        self.num_replaced = 0

    async def add(self) -> Process:
        """Starts a process, which is replaced when it ends. Raises `Unavailable` if the process cannot be started."""
        process = self._make()
        self.processes.append(process)
        self.all_gone.clear()
        try:
            await process.start()
        except BaseException as error:
            if not process.pid:
                self.remove(process)
            if isinstance(error, OSError):
                raise Unavailable(f"no {self._kind} can be started: {error}") from error
            raise
        self._begin(process)
        return process

    def remove(self, process: Process) -> None:
        """Forgets a process that has ended."""
        self.processes.remove(process)
        if not self.processes:
            self.all_gone.set()

    def replace(self, process: Process) -> None:
        """Forgets a process that has ended, and starts another one in its place, except while closing."""
        self.remove(process)
        if self.is_closing:
            return
        _log.warning(f"{self._kind} replaced", extra={"pid": process.pid, "why": process.why_ended})
        self.num_replaced += 1
        self.failed_starts += not process.is_ready
        task = asyncio.get_running_loop().create_task(self._start_another())
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    def kill(self, why: str) -> None:
        """Kills all processes. Replaces none of them."""
        self.is_closing = True
        for task in self._replacing:
            task.cancel()
        for process in self.processes:
            process.kill(why)

    async def _start_another(self) -> None:
        while True:
            if self.failed_starts:
                await asyncio.sleep(min(self._min_backoff_s * 2**self.failed_starts, self._max_backoff_s))
            try:
                await self.add()
                return
            except Unavailable as error:
                self.failed_starts += 1
                self._on_failed_start(error.message)
                _log.error(f"{self._kind} not replaced", extra={"error": error.message})
