"""The pool of a run's generators, which binds a group to a generator with room for it, and samples the group there."""

import asyncio
import bisect
import contextlib
import itertools
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from services.coordinator.workers.claims import Binding, Claim
from services.coordinator.workers.deadlines import Pace
from services.coordinator.workers.deterministic_batches import Seat
from services.coordinator.workers.fleet import Fleet
from services.coordinator.workers.group_progress import GroupProgress, whole_prefix
from services.coordinator.workers.lost_work import WorkFailed
from services.coordinator.workers.member import Member
from services.coordinator.workers.utilization import Utilization
from shoal.arrays import Int32Array
from shoal.error_reasons import ErrorReason
from shoal.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    ShoalError,
    Unavailable,
)
from shoal.rollout import Completion, FinishReason, Prompt, SamplingParams, WeightVersion
from shoal.telemetry import metrics, names
from shoal.v1 import generator_pb2
from shoal.wire import completion_from_wire, int32_to_wire, part_from_wire, prefixes_to_wire, sampling_to_wire

_RESUMED = metrics.counter(names.RUN_TOKENS_RESUMED)
_INTERRUPTED = metrics.counter(names.RUN_COMPLETIONS_INTERRUPTED)

_NOT_THE_GROUPS = frozenset(
    {
        ErrorReason.SHUTTING_DOWN,
        ErrorReason.RESTORED,
        ErrorReason.OTHER_RUN,
        ErrorReason.REQUEST_DROPPED,
        ErrorReason.BATCH_BROKEN,
    }
)
"""Reasons for which a generator drops any group, so that the group is not the cause of the failure."""


async def _as_it_is(completion: Completion) -> Completion:
    return completion


class GeneratorPool:
    """All generators of a run. Each whole group goes to the least loaded generator that has room."""

    def __init__(
        self, fleet: Fleet, *, max_num_seqs: int, wait_timeout_s: float, running_s: Callable[[], float]
    ) -> None:
        """`max_num_seqs`: completions that a generator samples at once; `wait_timeout_s`: longest wait for a generator
        with current weights; `running_s`: a clock that stops during a pause."""
        self._fleet = fleet
        self._max_num_seqs = max_num_seqs
        self._wait_timeout_s = wait_timeout_s
        self._running_s = running_s
        self._claims: list[Claim] = []
        self._numbers = itertools.count()
        self.utilization = Utilization(running_s)
        self.pace = Pace()
        """The pace of the sampled completions."""

    @property
    def num_serving(self) -> int:
        """Number of generators that may be called now."""
        return sum(member.serving for member in self._fleet.generators)

    @property
    def num_seats(self) -> int:
        """Number of completions that all generators sample at once."""
        return self._max_num_seqs * len(self._fleet.generators)

    def take_kv_cache_use(self) -> float | None:
        """Returns the used share of the key-value caches, as a mean over the generators and the time since the last
        call; None before a generator has reported its share."""
        shares = [member.record.kv_cache_use.take() for member in self._fleet.generators]
        known = [share for share in shares if share is not None]
        return sum(known) / len(known) if known else None

    @contextlib.asynccontextmanager
    async def room(
        self, num_completions: int, *, priority: int, version: WeightVersion | None = None, seat: Seat | None = None
    ) -> AsyncIterator[Binding]:
        """Waits for room on a generator that serves, and keeps it in the context. The lowest `priority` comes first.

        A generator has room while it samples fewer completions than it can at once. So no completion waits in its queue
        for long, and the queue does not run dry. With `version`, only a generator with exactly these weights is used.
        The whole group goes to one generator, so that its prompt is prefilled once. The wait for room has no deadline,
        but raises `FailedPrecondition` if no generator serves for `wait_timeout_s`.

        With a `seat`, all groups of its batch go together to an idle generator, and the context ends once all of them
        are sampled. Raises `WorkFailed` if another group of the batch failed.
        """
        if seat is None:
            claim = Claim(priority, next(self._numbers), (num_completions,), version)
            bisect.insort(self._claims, claim)
            async with self._bound(claim, 0) as binding:
                yield binding
            return
        async with seat.batch.trial(seat.member, num_completions) as trial:
            if trial.claim is None:
                trial.claim = Claim(priority, next(self._numbers), trial.sizes, version, is_batch=True)
                bisect.insort(self._claims, trial.claim)
            place = trial.place(seat.member)
            async with self._bound(trial.claim, place.index) as binding:
                binding.place = place
                yield binding

    @contextlib.asynccontextmanager
    async def _bound(self, claim: Claim, index: int) -> AsyncIterator[Binding]:
        """Waits for the generator of a claim, and keeps the room of one of its groups."""
        try:
            yield (await self._bindings(claim))[index]
        finally:
            if claim.bindings.done():
                claim.bindings.result()[index].resize(0)
            elif claim in self._claims:
                self._claims.remove(claim)

    async def _bindings(self, claim: Claim) -> list[Binding]:
        now = asyncio.get_running_loop().time
        deadline = now() + self._wait_timeout_s
        self._bind()
        while not claim.bindings.done():
            if self._serving(claim.version):
                deadline = now() + self._wait_timeout_s
            remaining = max(deadline, self._fleet.gpu_turns.began + self._wait_timeout_s) - now()
            if remaining <= 0:
                raise FailedPrecondition(
                    f"no generator had {'current weights' if claim.version is None else f'weights {claim.version}'} "
                    f"for {self._wait_timeout_s:.0f} s (coordinator.worker_timeout_s); see the logs of the generators",
                    reason=ErrorReason.NO_GENERATOR,
                )
            changed = asyncio.create_task(self._fleet.changed.wait(min(remaining, 1.0)))
            try:
                waits: list[asyncio.Future[Any]] = [claim.bindings, changed]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            self._bind()
        return claim.bindings.result()

    def _serving(self, version: WeightVersion | None) -> list[Member]:
        generators = [member for member in self._fleet.generators if member.serving]
        return [member for member in generators if version is None or member.version == version]

    def _bind(self) -> None:
        """Binds waiting groups to generators with room, in order."""
        for claim in list(self._claims):
            limit = 1 if claim.is_batch else self._max_num_seqs
            roomy = [m for m in self._serving(claim.version) if m.outstanding < limit]
            if roomy:
                self._claims.remove(claim)
                # Ties are broken at random: after a pause, all groups would go to the first generator otherwise.
                member = min(roomy, key=lambda candidate: (candidate.outstanding, random.random()))
                claim.bindings.set_result([Binding(member, size, self._bind) for size in claim.sizes])
            elif claim.version is None:
                return  # Any generator would do: there is no room for those behind it either.

    async def sample(
        self,
        binding: Binding,
        prompt: Prompt,
        progress: GroupProgress,
        sampling: SamplingParams,
        *,
        request_id: str,
        timeout_s: float,
        on_begin: Callable[[], None] = lambda: None,
        report_every_tokens: int = 0,
        resumable: Callable[[Int32Array], int] = whole_prefix,
        with_text: Callable[[Completion], Awaitable[Completion]] = _as_it_is,
    ) -> AsyncGenerator[Completion]:
        """Yields the missing completions of a group as they finish, converted by `with_text`; adds them to `progress`.

        With `report_every_tokens`, also adds the tokens of unfinished completions. See `begin_call` for `resumable`.
        Calls `on_begin` at the first token, which has to come within `timeout_s`; the group has the same time again to
        finish. Pauses do not count. Raises `WorkFailed` if another generator has to continue, and `DeadlineExceeded`.
        """
        asked, was_connected = progress.missing, binding.member.is_connected
        prefixes = progress.begin_call(resumable, sampling.max_completion_tokens)
        request = generator_pb2.GenerateGroupRequest(
            request_id=request_id,
            prompt_token_ids=int32_to_wire(prompt.token_ids),
            sampling=sampling_to_wire(sampling),
            seeds=[progress.seeds[index] for index in asked],
            report_begin=True,
            batch=binding.place,
            report_every_tokens=report_every_tokens,
            prefixes=prefixes_to_wire({place: prefixes[index] for place, index in enumerate(asked)}),
        )
        _RESUMED.add(sum(map(len, prefixes.values())))
        self.utilization.out(len(asked))
        began = self._running_s()
        try:
            while progress.missing:
                binding.resize(len(progress.missing))
                responses = self._responses(binding.member, request, timeout_s, on_begin)
                try:
                    async with contextlib.aclosing(_finished(responses, binding.member, asked, progress)) as finished:
                        async for rest, num_prefix_tokens in finished:
                            completion = await with_text(progress.whole(rest, num_prefix_tokens))
                            progress.finish(completion)
                            binding.resize(len(progress.missing))
                            self.utilization.back(num_tokens=completion.num_tokens)
                            self.pace.observe(completion.num_tokens, self._running_s() - began)
                            yield completion
                except ResourceExhausted as error:
                    # With the same request id the generator resends what it has finished, and samples nothing twice.
                    await asyncio.sleep(_pause_s(error))
                else:
                    if progress.missing:
                        raise WorkFailed(binding.member.name, f"it did not send samples {progress.missing}")
        except (Unavailable, Internal, Aborted, FailedPrecondition) as error:
            raise self._failure(binding.member, error, was_connected=was_connected) from error
        finally:
            binding.resize(0)
            self.utilization.back(len(progress.missing))
            _INTERRUPTED.add(len(progress.missing))

    async def _responses(
        self,
        member: Member,
        request: generator_pb2.GenerateGroupRequest,
        timeout_s: float,
        on_begin: Callable[[], None],
    ) -> AsyncGenerator[generator_pb2.GenerateGroupResponse]:
        """Yields the responses to a request that have content, and keeps its deadlines.

        Raises `Unavailable` once the generator is lost, also if the call goes on: its process may hang.
        """
        # The call's own deadline is for a generator that is gone with its machine.
        stream = aiter(member.stub.GenerateGroup(request, timeout=2 * timeout_s))
        has_begun, deadline = False, self._running_s() + timeout_s
        lost = asyncio.ensure_future(member.lost.wait())
        try:
            while True:
                reading = asyncio.ensure_future(anext(stream, None))
                try:
                    while not (reading.done() or lost.done()) and (remaining := deadline - self._running_s()) > 0:
                        await asyncio.wait(
                            [reading, lost], timeout=max(remaining, 0.01), return_when=asyncio.FIRST_COMPLETED
                        )
                finally:
                    if not reading.done():
                        reading.cancel()
                if not reading.done() and lost.done():
                    raise Unavailable(f"it is lost: {member.record.loss_reason}")
                if reading.cancelled() or not reading.done():
                    raise self._too_slow(member, timeout_s, has_begun=has_begun)
                response = reading.result()
                if response is None:
                    return
                if not has_begun:  # An earlier version of the generator reports nothing before the first completion.
                    has_begun, deadline = True, self._running_s() + timeout_s
                    on_begin()
                if not response.has_begun:
                    yield response
        finally:
            lost.cancel()

    def _too_slow(self, member: Member, timeout_s: float, *, has_begun: bool) -> Exception:
        if has_begun:
            return DeadlineExceeded(
                f"the group was not sampled within {timeout_s:g} s of its first token (coordinator.sampling_timeout_s)"
            )
        member.serving, member.standing.is_in_doubt = False, True
        self._fleet.changed.notify()
        return WorkFailed(
            member.name, f"it sent no token within coordinator.sampling_timeout_s ({timeout_s:g} s)", is_loss=True
        )

    def _failure(self, member: Member, error: ShoalError, *, was_connected: bool) -> WorkFailed:
        """Returns what an error means for the group. If the generator cannot serve, takes it out of service.

        An error inside a generator counts against the request, and the generator continues. A process that had ended
        before the request, as the lack of a connection shows, did not end because of the group.
        """
        if isinstance(error, Unavailable) or error.reason == ErrorReason.ENGINE_DEAD:
            self._fleet.out_of_reach(member, error)
        elif isinstance(error, FailedPrecondition):
            member.serving = False  # Until the publisher has found out which weights it has.
            self._fleet.changed.notify()
            return WorkFailed(member.name, error.message, is_loss=False)
        if error.reason == ErrorReason.SHUTTING_DOWN:
            self._fleet.leaves(member)
        had_ended = isinstance(error, Unavailable) and not was_connected
        is_loss = error.reason not in _NOT_THE_GROUPS and not member.is_leaving and not had_ended
        return WorkFailed(member.name, error.message, is_loss=is_loss)


async def _finished(
    responses: AsyncGenerator[generator_pb2.GenerateGroupResponse],
    member: Member,
    asked: Sequence[int],
    progress: GroupProgress,
) -> AsyncGenerator[tuple[Completion, int]]:
    """Yields the completions that a call finishes, without their prefixes, and the lengths of the prefixes.

    Records the tokens of unfinished completions. `asked` has the sample index in the group for each sample of the call.
    """
    support = bytearray()
    async with contextlib.aclosing(responses):
        async for response in responses:
            progress.generators[member.record.worker_id] = None
            for index, start, run in map(part_from_wire, response.parts):
                progress.report(_of(asked, index), start, run)
            support += response.support_token_ids
            if not response.HasField("completion"):
                continue
            rest = completion_from_wire(response.completion, bytes(support))
            support.clear()
            if rest.finish_reason is FinishReason.ABORT:
                raise WorkFailed(member.name, "it aborted the completion")
            index = _of(asked, rest.sample_index)
            if index not in progress.completions:
                yield replace(rest, sample_index=index), response.num_prefix_tokens


def _of(asked: Sequence[int], index: int) -> int:
    """Returns the sample index in the group for a sample of a call. Raises `Internal` for a sample not requested."""
    if not 0 <= index < len(asked):
        raise Internal(f"it sent sample {index}, but the call has samples 0 to {len(asked) - 1}")
    return asked[index]


def _pause_s(error: ResourceExhausted) -> float:
    """Returns the pause before a full generator is asked again. Raises `InvalidArgument` if no pause helps."""
    if error.reason == ErrorReason.MESSAGE_TOO_LARGE:
        raise InvalidArgument(error.message, reason=error.reason) from None
    return error.retry_after_s or 1.0
