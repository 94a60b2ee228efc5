"""Run controls: pause, resume, stop, checkpoint and evaluation requests, for the loops that obey them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Coroutine
from enum import StrEnum
from typing import Any, TypeVar

from services.coordinator.rollout.evaluation_result import EvaluationResult
from shoal.concurrency import Signal

ResultT = TypeVar("ResultT")


class StopMode(StrEnum):
    """When a run that is stopped ends."""

    NOW = "now"
    """At the next step boundary."""
    DRAIN = "drain"
    """Once everything in flight has been trained on."""


class RunControls:
    """Holds the requests to a run; its loops read them where they can obey."""

    def __init__(self) -> None:
        self.stop: StopMode | None = None
        self.checkpoint_requests: list[asyncio.Future[str]] = []
        """Each receives the name of the checkpoint that was written for it."""
        self.evaluation_requests: list[asyncio.Future[EvaluationResult]] = []
        """Each receives the result of an evaluation that began after the request."""
        self.num_pauses = 0
        """Pauses so far. Where it has changed meanwhile, a deadline that passed does not count."""
        self._stood_still_s = 0.0
        """Time that the run has stood still, up to `_stopped_at`."""
        self._stopped_at = 0.0
        """Time at which the run stood still last."""
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._moving = asyncio.Event()
        self._moving.set()
        self._training: set[asyncio.Timeout] = set()
        """Sampling for training that is under way."""
        self._changed = Signal()

    @property
    def is_paused(self) -> bool:
        """Whether the run is paused."""
        return not self._unpaused.is_set()

    @property
    def stands_still(self) -> bool:
        """Whether the run is paused, and not even samples answers for an evaluation."""
        return not self._moving.is_set()

    def running_s(self) -> float:
        """Returns the time of a clock that stops while the run stands still; use differences."""
        return (self._stopped_at if self.stands_still else time.monotonic()) - self._stood_still_s

    def pause(self) -> None:
        """Pauses the run."""
        if not self.is_paused:
            self._stand_still()
        self.num_pauses += 1
        self._unpaused.clear()
        self._changed.notify()

    def resume(self) -> None:
        """Ends the pause."""
        self._move()
        self._unpaused.set()
        self._changed.notify()

    def begin_evaluation_in_pause(self) -> None:
        """Lets a paused run sample the answers of an evaluation. What is sampled for training ends where it is."""
        self._move()
        for scope in self._training:
            if not scope.expired():
                scope.reschedule(asyncio.get_running_loop().time())

    def end_evaluation_in_pause(self) -> None:
        """Lets a run that is still paused stand still again."""
        if self.is_paused:
            self._stand_still()

    def _stand_still(self) -> None:
        if not self.stands_still:
            self._stopped_at = time.monotonic()
            self._moving.clear()

    def _move(self) -> None:
        if self.stands_still:
            self._stood_still_s += time.monotonic() - self._stopped_at
            self._moving.set()

    @contextlib.asynccontextmanager
    async def sampling_for_training(self) -> AsyncIterator[None]:
        """Ends what runs inside, without an error, when a paused run begins to sample for an evaluation."""
        is_in_the_way = self.is_paused and not self.stands_still
        scope = asyncio.timeout(0 if is_in_the_way else None)
        self._training.add(scope)
        try:
            async with scope:
                yield
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            self._training.discard(scope)

    def request_stop(self, mode: StopMode) -> None:
        """Requests the end of the run. NOW overrides DRAIN, not the reverse. Ends a pause: to drain, a run must run."""
        if self.stop is not StopMode.NOW:
            self.stop = mode
        self.resume()

    def request_checkpoint(self) -> asyncio.Future[str]:
        """Requests a checkpoint at the next step boundary, unless the request is canceled before."""
        request: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.checkpoint_requests.append(request)
        request.add_done_callback(self.end_checkpoint_request)
        self._changed.notify()
        return request

    def end_checkpoint_request(self, request: "asyncio.Future[str]") -> None:
        """Removes a request that is answered, or whose caller has gone."""
        if request in self.checkpoint_requests:
            self.checkpoint_requests.remove(request)

    def wake(self) -> None:
        """Lets the loops look again at what is no request: whether the learner is about to leave."""
        self._changed.notify()

    def request_evaluation(self) -> "asyncio.Future[EvaluationResult]":
        """Requests an evaluation at the next step boundary, unless the request is canceled before."""
        request: asyncio.Future[EvaluationResult] = asyncio.get_running_loop().create_future()
        self.evaluation_requests.append(request)
        request.add_done_callback(self._end_evaluation_request)
        self._changed.notify()
        return request

    def _end_evaluation_request(self, request: "asyncio.Future[EvaluationResult]") -> None:
        if request in self.evaluation_requests:
            self.evaluation_requests.remove(request)

    def take_evaluation_requests(self) -> "list[asyncio.Future[EvaluationResult]]":
        """Removes and returns the requests that the evaluation about to begin answers."""
        taken, self.evaluation_requests = self.evaluation_requests, []
        return taken

    def refuse_requests(self, error: Exception) -> None:
        """Fails every request that is still waiting."""
        requests: list[asyncio.Future[Any]] = [*self.take_evaluation_requests(), *self.checkpoint_requests]
        for request in requests:
            if not request.done():  # A request whose caller has gone is canceled, and so done.
                request.set_exception(error)

    async def unpaused(self) -> None:
        """Returns when the run is not paused."""
        await self._unpaused.wait()

    async def moving(self) -> None:
        """Returns when the run does not stand still."""
        await self._moving.wait()

    async def wait_for_change(self, timeout_s: float | None = None) -> None:
        """Returns at the next request, or after the time-out."""
        await self._changed.wait(timeout_s)

    async def wait_for_change_or(self, work: "asyncio.Task[Any]") -> None:
        """Returns at the next request, or when the work is done."""
        # Take the event here, not inside the task: a request that arrives in between must not be missed.
        changed = asyncio.create_task(self._changed.next.wait())
        try:
            await asyncio.wait([changed, work], return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    async def unless_stopped(
        self, work: Coroutine[Any, Any, ResultT], *, by: Collection[StopMode] = (StopMode.NOW,)
    ) -> ResultT | None:
        """Returns the result of the work; cancels it and returns None if the run is to stop in a mode of `by`.

        The work has ended in both cases.
        """
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
