"""Groups in sampling, by request id. A repeated request joins its group, finished groups are kept for a while, and no
group is sampled twice."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np

from services.generator.batches import Batches
from services.generator.engine import Engine
from services.generator.group import Group, GroupRequest, Reader, Update
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, Internal, ResourceExhausted, ShoalError, Unavailable
from shoal.grpo.seeds import continuation_seed
from shoal.rollout import Completion
from shoal.telemetry import metrics, names
from shoal.token_run import TokenRun
from shoal.wire import invalid

log = logging.getLogger(__name__)

_RETRY_AFTER_S = 1.0
_ABORT_S = 5.0  # Longest wait for the tokens of aborted completions.
_NO_PREFIX = np.zeros(0, np.int32)


class Requests:
    """The groups of one engine."""

    def __init__(
        self,
        engine: Engine,
        *,
        capacity: int,
        while_paused: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        max_kept_bytes: int = 64 << 20,
    ) -> None:
        """`capacity` limits the completions in flight. Above `max_kept_bytes` the oldest finished groups are removed.

        `while_paused` awaits a call while the engine is paused, with an empty cache.
        """
        self._engine = engine
        self._while_paused = while_paused
        self._capacity = capacity
        self._max_kept_bytes = max_kept_bytes
        self._groups: OrderedDict[str, Group] = OrderedDict()
        self._sampling: set[asyncio.Task[None]] = set()
        """The tasks of completions in the engine. A canceled completion stays until it has left the engine."""
        self._batches: Batches[Group] = Batches(self._begin_together, self._fail)
        self._is_draining = False
        self.num_sampled_tokens = 0

    @property
    def num_in_flight(self) -> int:
        """Number of completions that run or wait in the engine."""
        return sum(len(group.running) for group in self._groups.values())

    async def stream(self, request: GroupRequest) -> AsyncIterator[Update]:
        """Yields the updates of a group. The first update contains everything so far.

        When the last reader disconnects, the unfinished completions are aborted. Raises `ResourceExhausted` if the
        queue is full, `InvalidArgument` if another group has the id, `Aborted` during a drain, and the errors of the
        engine.
        """
        group = self._groups.setdefault(request.request_id, Group(request))
        if not group.request.is_same_as(request):
            raise invalid("request_id", f"{request.request_id!r} belongs to an earlier request with other fields")
        self._groups.move_to_end(request.request_id)
        group.num_readers += 1
        try:
            if request.place is None:
                self._start_missing(group)
            elif self._is_draining:
                raise _leaving()
            else:
                self._batches.enter(request.place, group)
            reader = Reader()
            while True:
                error, progress = group.error, group.progress
                update = reader.news(group)
                if update.has_begun or update.parts or update.completions:
                    yield update
                if error is not None:
                    raise error
                if group.progress is progress:  # Else more has happened during the send.
                    if group.is_complete:
                        return
                    await progress.wait()
        finally:
            group.num_readers -= 1
            if not group.num_readers:
                self._leave(group)

    def drop_all(self, error: ShoalError) -> None:
        """Ends every group in flight with an error, and forgets the finished groups."""
        for group in list(self._groups.values()):
            self._fail(group, error)
        self._groups.clear()

    async def drain(self, grace_s: float) -> None:
        """Refuses new groups, lets completions in flight finish for `grace_s`, and returns the rest to the caller.

        Callers that asked for reports get the tokens so far, then `Aborted`, even if the engine fails meanwhile.
        """
        self._is_draining = True
        try:
            await self._until_idle(grace_s)
            if self._sampling:
                await self._engine.abort_all()
                await self._until_idle(_ABORT_S)
        finally:
            for group in list(self._groups.values()):
                if not group.is_complete:
                    self._fail(group, _leaving())

    async def _until_idle(self, timeout_s: float) -> None:
        """Waits until the engine samples nothing, which may be so at once: vLLM ends requests when it aborts them."""
        if self._sampling:
            await asyncio.wait(self._sampling, timeout=timeout_s)

    def _start_missing(self, group: Group) -> None:
        missing = group.missing
        if missing and self._is_draining:
            raise _leaving()
        busy = self.num_in_flight
        if busy + len(missing) > self._capacity:
            raise ResourceExhausted(
                f"{busy} completions are in flight; {len(missing)} more would exceed the limit of {self._capacity} "
                "(generator.max_num_seqs + generator.max_queued_requests)",
                reason=ErrorReason.QUEUE_FULL,
                # A group that is larger than the whole queue never fits.
                retry_after_s=_RETRY_AFTER_S if len(missing) <= self._capacity else None,
            )
        self._start(group)

    def _start(self, group: Group) -> None:
        # Keep the order of the seeds: the engine admits requests in the order of their creation.
        for index in group.missing:
            group.runs.pop(index, None)
            task = group.running[index] = asyncio.create_task(self._sample(group, index))
            self._sampling.add(task)
            task.add_done_callback(self._sampling.discard)

    async def _begin_together(self, groups: Sequence[Group]) -> None:
        """Begins the groups of a batch in order when the engine samples no other requests.

        Raises `InvalidArgument` for a batch that is larger than the queue.
        """
        size = sum(len(group.request.seeds) for group in groups)
        if size > self._capacity:
            raise invalid("batch", f"must have at most {self._capacity} completions to fit the queue (given: {size})")
        while self._sampling:
            await asyncio.wait(self._sampling)

        async def start() -> None:
            for group in groups:
                self._start(group)
            await self._engine.admitted()

        await self._while_paused(start)

    async def _sample(self, group: Group, index: int) -> None:
        request = group.request
        prefix = request.prefixes.get(index, _NO_PREFIX)
        num_counted = 0

        def on_tokens(run: TokenRun) -> None:
            nonlocal num_counted
            num_counted += run.num_tokens
            self._count(run.num_tokens)
            group.sampled(index, run)

        try:
            sample = await self._engine.sample(
                [*request.prompt_token_ids.tolist(), *prefix.tolist()],
                replace(request.sampling, max_completion_tokens=request.sampling.max_completion_tokens - len(prefix)),
                continuation_seed(request.seeds[index], len(prefix)),
                on_tokens,
                request.report_every_tokens,
            )
        except Aborted as error:
            if not self._is_draining:  # In a drain the siblings may have tokens to hand back.
                self._fail(group, error)
            return
        except Unavailable as error:
            # The caller must not retry here: the engine is dead.
            self._fail(group, Aborted(error.message, reason=error.reason))
            return
        except ShoalError as error:
            self._fail(group, error)
            return
        except Exception as error:
            log.exception("sampling failed", extra={"request_id": request.request_id})
            self._fail(group, Internal(f"sampling failed: {type(error).__name__}: {error}"))
            return
        finally:
            # A repeat may have begun a new task while this one was ending. Keep the new task.
            if group.running.get(index) is asyncio.current_task():
                del group.running[index]
        completion = Completion(
            sample_index=index,
            token_ids=sample.tokens.token_ids,
            behavior_logprobs=sample.tokens.logprobs,
            finish_reason=sample.finish_reason,
            version_spans=sample.tokens.version_spans,
            seed=request.seeds[index],
            support=sample.tokens.support,
        )
        group.has_begun = True
        group.runs.pop(index, None)
        group.finished.append(completion)
        self._count(completion.num_tokens - num_counted)
        metrics.counter(names.GENERATOR_COMPLETIONS).add(1, {names.FINISH_REASON: completion.finish_reason.value})
        group.wake_readers()

    def _count(self, num_tokens: int) -> None:
        self.num_sampled_tokens += num_tokens
        metrics.counter(names.GENERATOR_TOKENS).add(num_tokens)

    def _fail(self, group: Group, error: ShoalError) -> None:
        """Ends a group with an error; a repeated request samples the group again."""
        group.error = group.error or error
        self._groups.pop(group.request.request_id, None)
        self._cancel(group)
        group.wake_readers()

    def _leave(self, group: Group) -> None:
        self._cancel(group)
        if group.request.place is not None:
            self._batches.leave(group.request.place, group, is_complete=group.is_complete)
        if not group.finished:
            self._groups.pop(group.request.request_id, None)
        self._evict()

    def _cancel(self, group: Group) -> None:
        for task in group.running.values():
            if task is not asyncio.current_task():
                task.cancel()
        group.running.clear()

    def _evict(self) -> None:
        kept = sum(group.num_bytes for group in self._groups.values())
        for request_id, group in list(self._groups.items()):
            if kept <= self._max_kept_bytes:
                return
            if not group.num_readers:
                kept -= group.num_bytes
                del self._groups[request_id]


def _leaving() -> Aborted:
    return Aborted("the generator is shutting down", reason=ErrorReason.SHUTTING_DOWN)
