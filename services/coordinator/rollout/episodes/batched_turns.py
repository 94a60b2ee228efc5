"""The turns of an episode in a deterministic run, each sampled in a batch with turns of other episodes."""

import contextlib
from types import TracebackType

from services.coordinator.rollout.completions import EpisodeRequest
from services.coordinator.rollout.episodes.clock import EpisodeClock
from services.coordinator.rollout.episodes.stage import EpisodeParts
from services.coordinator.rollout.episodes.turn_sampler import TurnRequest, TurnSampler
from services.coordinator.workers.deterministic_batches import Seat
from services.coordinator.workers.group_progress import GroupProgress
from services.coordinator.workers.turn_batches import EpisodeTurns
from shoal.rollout import Completion


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
        """Returns when the whole batch is sampled. Raises `WorkFailed` when any of it failed."""
        async with contextlib.AsyncExitStack() as stack:
            with self._clock.stopped():
                room = self._parts.generators.room(1, priority=self._priority, version=self._version, seat=self._seat)
                binding = await stack.enter_async_context(room)
            return await self._receive(request, progress, call_id, binding)
        raise AssertionError("a room lets errors through")
