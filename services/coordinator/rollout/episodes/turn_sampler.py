"""The turns of an episode, sampled on the same generator as long as that generator serves, and then on another."""

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self

from services.coordinator.rollout.completions import EpisodeRequest
from services.coordinator.rollout.episodes.limits import EpisodeClock
from services.coordinator.rollout.episodes.stage import EpisodeParts
from services.coordinator.rollout.rounds import EpisodeTurns
from services.coordinator.workers.claims import Binding
from services.coordinator.workers.deadlines import sampling_timeout_s
from services.coordinator.workers.deterministic_batches import Seat
from services.coordinator.workers.group_progress import GroupProgress, resumable_tokens
from services.coordinator.workers.lost_work import LostWork, WorkFailed
from services.coordinator.workers.member import Member
from shoal.arrays import Int32Array
from shoal.rollout import Completion, Prompt, SamplingParams
from shoal.telemetry import names, trace


@dataclass(frozen=True)
class TurnRequest:
    """The request of one turn to a generator."""

    name: str
    """The name of the turn, to which each call adds a number."""
    context: Int32Array
    """The prompt and everything after it."""
    sampling: SamplingParams
    seed: int


class TurnSampler:
    """Samples the turns of one episode. Keeps the episode's generator until its block ends, for the prefix cache.

    A turn goes back to that generator without waiting for room. So only episodes that have not begun wait. Turns that
    are sampled at the same time share the room of one episode.
    """

    def __init__(self, parts: EpisodeParts, clock: EpisodeClock, episode: EpisodeRequest) -> None:
        self._parts = parts
        self._clock = clock
        self._priority, self._version = episode.priority, episode.version
        self._binding: Binding | None = None
        self._room = contextlib.AsyncExitStack()
        self._placing = asyncio.Lock()
        self.worker_ids: dict[str, None] = {}
        """The generators that sampled a turn, in order."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave()

    @property
    def is_paused(self) -> bool:
        """Whether the run is paused. An evaluation is paused only when the run stands still."""
        return self._parts.pause.is_paused if self._version is None else self._parts.pause.stands_still

    async def unpaused(self) -> None:
        """Waits for the end of a pause."""
        await (self._parts.pause.unpaused() if self._version is None else self._parts.pause.moving())

    async def sample(self, request: TurnRequest) -> Completion:
        """Samples one turn. If its generator is lost, another continues from the reported tokens.

        Raises `WorkFailed` after too many losses at the same token, and `DeadlineExceeded` if the turn takes too long.
        """
        progress = GroupProgress([request.seed])
        lost = LostWork(self._parts.config().coordinator.max_group_losses, self.unpaused, self._clock.stopped)
        async for number in lost:
            if not self._report_every_tokens:
                progress = GroupProgress([request.seed])
            try:
                return await self._call(request, progress, f"{request.name}/call-{number}")
            except WorkFailed as error:
                if lost.count(error, progress.num_prefix_tokens):
                    raise
            finally:
                self.worker_ids.update(progress.generators)
        raise AssertionError("unreachable")

    async def _call(self, request: TurnRequest, progress: GroupProgress, call_id: str) -> Completion:
        """Samples a turn with one call. Raises `WorkFailed`."""
        binding = await self._place()
        try:
            return await self._receive(request, progress, call_id, binding)
        except WorkFailed:
            async with self._placing:
                if self._binding is binding:
                    await self._leave()
            raise

    @property
    def _report_every_tokens(self) -> int:
        """The number of tokens between reports; 0 for none if a turn must be sampled whole, and in evaluations."""
        is_whole = self._parts.config().run.deterministic or self._version is not None
        return 0 if is_whole else self._parts.config().generator.report_every_tokens

    def _undisturbed(self) -> AbstractAsyncContextManager[None]:
        """Returns the scope of a call. In a pause, sampling for training makes way for an evaluation."""
        return self._parts.pause.sampling_for_training() if self._version is None else contextlib.nullcontext()

    async def _place(self) -> Binding:
        async with self._placing:
            if self._binding is None or not self._serves(self._binding.member):
                await self._leave()
                with self._clock.stopped():
                    room = self._parts.generators.room(1, priority=self._priority, version=self._version)
                    self._binding = await self._room.enter_async_context(room)
            return self._binding

    def _serves(self, member: Member) -> bool:
        return member.serving and (self._version is None or member.version == self._version)

    async def _leave(self) -> None:
        self._binding = None
        await self._room.aclose()
        self._room = contextlib.AsyncExitStack()

    async def _receive(
        self, request: TurnRequest, progress: GroupProgress, call_id: str, binding: Binding
    ) -> Completion:
        worker_id = binding.member.record.worker_id
        with trace.span(names.EPISODE_TURN, request_id=request.name, worker_id=worker_id):
            async with self._undisturbed():
                return await self._completion(request, progress, call_id, binding)
        raise WorkFailed(binding.member.name, "it paused for an evaluation", is_loss=False)

    async def _completion(
        self, request: TurnRequest, progress: GroupProgress, call_id: str, binding: Binding
    ) -> Completion:
        calls = self._parts.generators.sample(
            binding,
            Prompt("", request.context, "", ()),
            progress,
            request.sampling,
            request_id=call_id,
            timeout_s=sampling_timeout_s(self._parts.config(), self._parts.generators.pace),
            report_every_tokens=self._report_every_tokens,
            resumable=partial(
                resumable_tokens, stop_strings=request.sampling.stop_strings, decode=self._parts.stages.decode
            ),
        )
        async with contextlib.aclosing(calls):
            async for completion in calls:
                if self._version is not None and not progress.is_of(self._version):
                    raise WorkFailed(
                        binding.member.name, "it sampled a turn with weights of another version", is_loss=False
                    )
                return replace(completion, seed=request.seed)
        raise AssertionError("a call without an error delivers its completion")


class BatchedTurnSampler(TurnSampler):
    """Samples the turns of one episode. If a generator is lost, any idle generator samples the whole batch again."""

    def __init__(self, parts: EpisodeParts, clock: EpisodeClock, episode: EpisodeRequest, turns: EpisodeTurns) -> None:
        super().__init__(parts, clock, episode)
        self._turns = turns
        self._seat: Seat | None = None
        """The seat of the turn in flight."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._seat is not None:
            self._seat.leave()
        self._turns.leave()
        await super().__aexit__(kind, error, traceback)

    async def sample(self, request: TurnRequest) -> Completion:
        with self._clock.stopped():
            self._seat = await self._turns.seat()
        completion = await super().sample(request)
        self._seat = None
        return completion

    async def _call(self, request: TurnRequest, progress: GroupProgress, call_id: str) -> Completion:
        """Returns when the whole batch is sampled. Raises `WorkFailed` when any turn of the batch failed."""
        async with contextlib.AsyncExitStack() as stack:
            with self._clock.stopped():
                room = self._parts.generators.room(1, priority=self._priority, version=self._version, seat=self._seat)
                binding = await stack.enter_async_context(room)
            return await self._receive(request, progress, call_id, binding)
        raise AssertionError("a room lets errors through")
