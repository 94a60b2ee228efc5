"""The processes of one environment, and the places in them."""

import asyncio
import logging
from contextlib import suppress

import psutil

from services.reward.environments.code import EnvironmentCode
from services.reward.environments.environment_process import CallFailed, EnvironmentProcess, ProcessLost
from services.reward.process.descendants import children
from shoal.telemetry import metrics, names

_log = logging.getLogger(__name__)

_STARTED = metrics.counter(names.ENVIRONMENT_PROCESSES)
_MAX_STARTS, _START_PAUSE_S = 10, 0.1
"""Attempts to start a process that dies at its start: the code has worked before, so something else ends it. The pauses
between attempts grow."""


class EnvironmentPool:
    """Gives each episode a place in a process, and starts processes when needed. Belongs to one event loop."""

    def __init__(self, code: EnvironmentCode, episodes_per_process: int) -> None:
        self.code = code
        self._episodes_per_process = episodes_per_process
        self._processes: dict[EnvironmentProcess, asyncio.Task[None]] = {}
        """The processes, with the task that starts each."""
        self._num_episodes = 0
        self._is_closing = self._is_retiring = False
        self._empty = asyncio.Event()
        """Set when the pool is retiring and no episode is left."""

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid and not process.is_lost]

    def begin_episode(self) -> None:
        """Counts an episode until `end_episode`. Until then the pool stays open, even if it is retired."""
        self._num_episodes += 1

    def end_episode(self) -> None:
        self._num_episodes -= 1
        self._check_empty()

    async def place(self, max_starts: int = _MAX_STARTS, *, alone: bool = False) -> EnvironmentProcess:
        """Returns a process with room for one more episode. The caller gives the place back with `leave`.

        `alone` gives a new process that no other episode enters. Raises `CallFailed` if the code cannot be loaded, or
        if processes die at their start.
        """
        for attempt in range(1, max_starts + 1):
            process = self._added() if alone else self._with_room() or self._added()
            process.num_episodes += 1
            process.is_private = alone
            try:
                await asyncio.shield(self._processes[process])
                return process
            except ProcessLost as lost:
                self.leave(process)
                if attempt == max_starts or self._is_closing:
                    raise CallFailed("cannot_load", f"no process of the environment can be started: {lost}") from None
                await asyncio.sleep(_START_PAUSE_S * attempt)
            except BaseException:
                self.leave(process)
                raise
        raise AssertionError("the loop ends by return or raise")

    def leave(self, process: EnvironmentProcess) -> None:
        """Gives a place back. A process without episodes ends if it has leftovers."""
        process.num_episodes -= 1
        if process.num_episodes == 0 and not process.is_lost and (why := self._why_replace(process)):
            process.kill(why)

    async def close(self) -> None:
        """Ends all processes, and waits until they are gone."""
        self._is_closing = True
        processes = list(self._processes)
        for process in processes:
            process.kill("the service ends it")
        for process in processes:
            await process.gone.wait()

    async def retire(self) -> None:
        """Closes when all episodes have ended. No new episode begins here."""
        self._is_retiring = True
        self._check_empty()
        await self._empty.wait()
        await self.close()

    def _check_empty(self) -> None:
        if self._is_retiring and self._num_episodes == 0:
            self._empty.set()

    def _with_room(self) -> EnvironmentProcess | None:
        """Returns the process with the fewest episodes; None if all are full."""
        open_ones = [
            process
            for process in self._processes
            if not (process.is_lost or process.is_private) and process.num_episodes < self._episodes_per_process
        ]
        return min(open_ones, key=lambda process: process.num_episodes, default=None)

    def _added(self) -> EnvironmentProcess:
        process = EnvironmentProcess(
            self.code, lambda gone: self._processes.pop(gone, None), self._episodes_per_process
        )
        starting = self._processes[process] = asyncio.create_task(self._start(process))
        starting.add_done_callback(lambda task: task.cancelled() or task.exception())  # Retrieve the error.
        return process

    async def _start(self, process: EnvironmentProcess) -> None:
        _STARTED.add(1, {names.ENVIRONMENT: self.code.name})
        try:
            await process.start()
        except CallFailed as error:
            process.kill(str(error))
            raise
        _log.info("environment process started", extra={"environment": self.code.name, "pid": process.pid})

    def _why_replace(self, process: EnvironmentProcess) -> str:
        if self._episodes_per_process == 1 or process.is_private:
            return "the episode had a process of its own"
        # Shoal's own environments keep their sandbox.
        if not self.code.is_built_in and children(process.pid):
            return "its episodes left processes behind"
        with suppress(psutil.Error):
            if psutil.Process(process.pid).memory_info().rss > self.code.memory_bytes // 2:
                return "its episodes left memory behind"
        return ""
