"""Turns of an episode, sampled on one generator as long as it serves, and on another one after that."""

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self

from services.coordinator.rollout.controls import RunControls
from services.coordinator.rollout.episodes.clock import EpisodeClock
from services.coordinator.workers.claims import Binding
from services.coordinator.workers.generator_pool import GeneratorPool
from services.coordinator.workers.handover.group_progress import GroupProgress
from services.coordinator.workers.handover.resuming import resumable_tokens
from services.coordinator.workers.losses import Losses, WorkFailed
from shoal.arrays import Int32Array
from shoal.config import RunConfig
from shoal.rollout import Completion, Prompt, SamplingParams
from shoal.telemetry import names, trace


@dataclass(frozen=True)
class TurnRequest:
    """What a generator is asked for one turn."""

    name: str
    """Identifies the turn; each call for it has a number besides."""
    context: Int32Array
    """The prompt and everything behind it."""
    sampling: SamplingParams
    seed: int


class TurnSampler:
    """Samples the turns of one episode. Keeps the episode's generator until its block ends, for the prefix cache.

    A turn goes back to that generator without waiting for room. So episodes that have begun come before those that
    have not, and only these wait.
    """

    def __init__(
        self,
        config: RunConfig,
        controls: RunControls,
        generators: GeneratorPool,
        clock: EpisodeClock,
        *,
        priority: int,
        decode: Callable[[list[int]], str],
    ) -> None:
        """`priority` is that of `GeneratorPool.room`; `decode` returns tokens as text, special ones included."""
        self._config = config
        self._controls = controls
        self._generators = generators
        self._clock = clock
        self._priority = priority
        self._decode = decode
        self._binding: Binding | None = None
        self._room = contextlib.AsyncExitStack()
        self._losses = Losses(config.coordinator.max_group_losses)
        self.worker_ids: dict[str, None] = {}
        """The generators that sampled something, in order."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave()

    async def sample(self, request: TurnRequest) -> Completion:
        """Samples one turn. When its generator is lost, another one goes on from the tokens that it reported.

        Raises `WorkFailed` after too many losses, `DeadlineExceeded` when it takes too long.
        """
        progress = GroupProgress([request.seed])
        for number in itertools.count():
            binding = await self._place()
            worker_id = binding.member.record.worker_id
            try:
                with trace.span(names.EPISODE_TURN, worker_id=worker_id):
                    async with self._controls.sampling_for_training():
                        return await self._receive(request, progress, f"{request.name}/call-{number}", binding)
            except WorkFailed as error:
                self._losses.count(error)
                if self._losses.are_too_many:
                    raise
            finally:
                self.worker_ids.update(progress.generators)
            await self._leave()
            with self._clock.stopped():
                await self._losses.pause()
                await self._controls.unpaused()
        raise AssertionError("unreachable")

    async def _place(self) -> Binding:
        if self._binding is None or not self._binding.member.serving:
            await self._leave()
            with self._clock.stopped():
                self._binding = await self._room.enter_async_context(self._generators.room(1, priority=self._priority))
        return self._binding

    async def _leave(self) -> None:
        self._binding = None
        await self._room.aclose()
        self._room = contextlib.AsyncExitStack()

    async def _receive(
        self, request: TurnRequest, progress: GroupProgress, call_id: str, binding: Binding
    ) -> Completion:
        reports = 0 if self._config.run.deterministic else self._config.generator.report_every_tokens
        calls = self._generators.sample(
            binding,
            Prompt("", request.context, "", ()),
            progress,
            request.sampling,
            request_id=call_id,
            timeout_s=self._config.coordinator.sampling_timeout_s,
            with_text=_as_it_is,
            report_every_tokens=reports,
            resumable=partial(resumable_tokens, stop_strings=request.sampling.stop_strings, decode=self._decode),
        )
        async with contextlib.aclosing(calls):
            async for completion in calls:
                return replace(completion, seed=request.seed)
        raise AssertionError("a call without an error delivers its completion")


async def _as_it_is(completion: Completion) -> Completion:
    return completion
