"""Turns of an episode of a deterministic run, each sampled in a batch with those of other episodes."""

import contextlib
import itertools
from types import TracebackType

from services.coordinator.rollout.completions import EpisodeRequest
from services.coordinator.rollout.episodes.clock import EpisodeClock
from services.coordinator.rollout.episodes.stage import EpisodeParts
from services.coordinator.rollout.episodes.turn_sampler import TurnRequest, TurnSampler
from services.coordinator.workers.batches import Seat
from services.coordinator.workers.group_progress import GroupProgress
from services.coordinator.workers.losses import WorkFailed
from services.coordinator.workers.turn_batches import EpisodeTurns
from shoal.rollout import Completion
from shoal.telemetry import names, trace


class BatchedTurnSampler(TurnSampler):
    """Samples the turns of one episode. A turn that is lost with its generator is sampled again whole, with all others
    of its batch, by any generator that is idle."""

    def __init__(self, parts: EpisodeParts, clock: EpisodeClock, episode: EpisodeRequest, turns: EpisodeTurns) -> None:
        super().__init__(parts, clock, episode)
        self._turns = turns
        self._seat: Seat | None = None
        """Of the turn in flight."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._seat is not None:
            self._seat.leave()
        self._turns.leave()
        await super().__aexit__(kind, error, traceback)

    async def sample(self, request: TurnRequest) -> Completion:
        losses = self._losses_of_turn()
        with self._clock.stopped():
            self._seat = await self._turns.seat()
        for number in itertools.count():
            try:
                completion = await self._sample_in_batch(request, f"{request.name}/call-{number}", self._seat)
            except WorkFailed as error:
                losses.count(error)
                if losses.are_too_many:
                    raise
            else:
                self._seat = None
                return completion
            with self._clock.stopped():
                await losses.pause()
                await self.unpaused()
        raise AssertionError("unreachable")

    async def _sample_in_batch(self, request: TurnRequest, call_id: str, seat: Seat) -> Completion:
        """Returns when the whole batch is sampled. Raises `WorkFailed` when any of it failed."""
        progress = GroupProgress([request.seed])
        try:
            async with contextlib.AsyncExitStack() as stack:
                with self._clock.stopped():
                    room = self._parts.generators.room(1, priority=self._priority, version=self._version, seat=seat)
                    binding = await stack.enter_async_context(room)
                worker_id = binding.member.record.worker_id
                with trace.span(names.EPISODE_TURN, request_id=request.name, worker_id=worker_id):
                    async with self._undisturbed():
                        return await self._receive(request, progress, call_id, binding)
                raise WorkFailed(binding.member.name, "an evaluation came first", is_loss=False)
        finally:
            self.worker_ids.update(progress.generators)
