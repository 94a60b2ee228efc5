"""The controls of a run: its pause, and requests to stop, to write a checkpoint, or to evaluate."""

import asyncio
import contextlib
from collections.abc import Collection, Coroutine
from enum import StrEnum
from typing import Any, TypeVar

from services.coordinator.rollout.evaluation.result import EvaluationResult
from services.coordinator.rollout.pause import Pause

ResultT = TypeVar("ResultT")


class StopMode(StrEnum):
    """The time at which a stopped run ends."""

    NOW = "now"
    """At the next step boundary."""
    DRAIN = "drain"
    """After all groups in flight have been trained on."""


class RunControls(Pause):
    """Pauses a run, and keeps the requests to the run until its loops can fulfill them."""

    def __init__(self) -> None:
        super().__init__()
        self.stop: StopMode | None = None
        self.checkpoint_requests: list[asyncio.Future[str]] = []
        """Requests for checkpoints. Each request receives the name of the checkpoint that was written for it."""
        self.evaluation_requests: list[asyncio.Future[EvaluationResult]] = []
        """Requests for evaluations. Each request receives the result of an evaluation that began after the request."""

    def request_stop(self, mode: StopMode) -> None:
        """Requests the end of the run. NOW overrides DRAIN, not the reverse. Ends a pause: it would block a drain."""
        if self.stop is not StopMode.NOW:
            self.stop = mode
        self.resume()

    def request_checkpoint(self) -> "asyncio.Future[str]":
        """Requests a checkpoint at the next step boundary, unless the request is canceled before."""
        return self._add_request(self.checkpoint_requests)

    def request_evaluation(self) -> "asyncio.Future[EvaluationResult]":
        """Requests an evaluation at the next step boundary, unless the request is canceled before."""
        return self._add_request(self.evaluation_requests)

    def _add_request(self, waiting: "list[asyncio.Future[ResultT]]") -> "asyncio.Future[ResultT]":
        """Adds a request. The request leaves the list when it is answered or when its caller has gone."""

        def remove(request: "asyncio.Future[ResultT]") -> None:
            with contextlib.suppress(ValueError):  # An evaluation has taken it.
                waiting.remove(request)

        request: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        waiting.append(request)
        request.add_done_callback(remove)
        self.changed.notify()
        return request

    def take_evaluation_requests(self) -> "list[asyncio.Future[EvaluationResult]]":
        """Removes and returns the waiting requests. The evaluation that is about to begin answers them."""
        taken = list(self.evaluation_requests)
        self.evaluation_requests.clear()
        return taken

    def refuse_requests(self, error: Exception) -> None:
        """Fails every request that is still waiting."""
        requests: list[asyncio.Future[Any]] = [*self.take_evaluation_requests(), *self.checkpoint_requests]
        for request in requests:
            if not request.done():  # A request whose caller has gone is canceled, and so done.
                request.set_exception(error)

    async def wait_for_change_or(self, work: "asyncio.Task[Any]") -> None:
        """Returns at the next request, or when the work is done."""
        # Take the event here, not inside the task: a request that arrives in between must not be missed.
        changed = asyncio.create_task(self.changed.next.wait())
        try:
            await asyncio.wait([changed, work], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    async def unless_stopped(
        self, work: Coroutine[Any, Any, ResultT], *, by: Collection[StopMode] = (StopMode.NOW,)
    ) -> ResultT | None:
        """Returns the result of the work. If the run is to stop in a mode of `by`, ends the work and returns None."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                if self.stop in by:
                    return None
                await self.wait_for_change_or(task)
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait([task])
