"""What people ask of a run while it runs: pause, resume, stop, checkpoint, evaluate."""

import asyncio
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any, TypeVar

from services.coordinator.evaluation_result import EvaluationResult
from services.coordinator.tasks import Signal

ResultT = TypeVar("ResultT")


class StopMode(StrEnum):
    """How a run is to end before its last step."""

    NOW = "now"
    """At the next step boundary."""
    DRAIN = "drain"
    """Once all that is in flight has been trained on."""


class RunControls:
    """Holds the wishes; the run's loops look at them where they can be met."""

    def __init__(self) -> None:
        self.stop: StopMode | None = None
        self.checkpoint_requests: list[asyncio.Future[str]] = []
        """Each gets the name of the checkpoint that was written for it."""
        self.evaluation_requests: list[asyncio.Future[EvaluationResult]] = []
        """Each gets the result of an evaluation that began after it was asked for."""
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._changed = Signal()

    @property
    def is_paused(self) -> bool:
        return not self._unpaused.is_set()

    def pause(self) -> None:
        self._unpaused.clear()
        self._changed.notify()

    def resume(self) -> None:
        self._unpaused.set()
        self._changed.notify()

    def ask_to_stop(self, mode: StopMode) -> None:
        """NOW overrides DRAIN, not the other way round. A run that drains has to run."""
        if self.stop is not StopMode.NOW:
            self.stop = mode
        self.resume()

    def ask_for_checkpoint(self) -> asyncio.Future[str]:
        request: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.checkpoint_requests.append(request)
        self._changed.notify()
        return request

    def ask_for_evaluation(self) -> "asyncio.Future[EvaluationResult]":
        request: asyncio.Future[EvaluationResult] = asyncio.get_running_loop().create_future()
        self.evaluation_requests.append(request)
        self._changed.notify()
        return request

    def take_evaluation_requests(self) -> "list[asyncio.Future[EvaluationResult]]":
        """The requests that the evaluation about to begin answers."""
        taken, self.evaluation_requests = self.evaluation_requests, []
        return taken

    def refuse_requests(self, error: Exception) -> None:
        """Answers all who still wait for something."""
        waiting: list[asyncio.Future[Any]] = [*self.checkpoint_requests, *self.evaluation_requests]
        for request in waiting:
            if not request.done():  # Else who asked has gone.
                request.set_exception(error)

    async def unpaused(self) -> None:
        """Returns when the run is not paused."""
        await self._unpaused.wait()

    async def wait_for_change(self) -> None:
        """Returns when something is asked for."""
        await self._changed.wait()

    async def wait_for_change_or(self, work: "asyncio.Task[Any]") -> None:
        """Returns when something is asked for, or when the work is done."""
        # The event is taken here, not when the task begins: what is asked for in between is not missed.
        changed = asyncio.create_task(self._changed.next.wait())
        try:
            await asyncio.wait([changed, work], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    async def unless_stopped(self, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
        """The work's result; None if the run is to stop now, and then the work is given up."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                if self.stop is StopMode.NOW:
                    return None
                await self.wait_for_change_or(task)
            return task.result()
        finally:
            task.cancel()
