"""The episodes of a group, each played on its own: what becomes of one does not touch the others."""

import asyncio
from collections.abc import Callable

from services.coordinator.rollout.completions import GroupRequest
from services.coordinator.rollout.controls import RunControls
from services.coordinator.rollout.episodes.clock import EpisodeClock
from services.coordinator.rollout.episodes.player import EpisodeParts, EpisodePlayer
from services.coordinator.rollout.episodes.turn_sampler import TurnSampler
from services.coordinator.workers.generator_pool import GeneratorPool
from shoal.concurrency import first_error
from shoal.grpo.seeds import environment_seed
from shoal.telemetry import names, trace


class EpisodeSampler:
    """Gets the completions of groups whose prompt names an environment."""

    def __init__(
        self,
        parts: EpisodeParts,
        controls: RunControls,
        generators: GeneratorPool,
    ) -> None:
        self._parts = parts
        self._controls = controls
        self._generators = generators

    async def sample(self, request: GroupRequest, awaits: Callable[[int], None]) -> None:
        """Adds the completions that a group lacks to `progress` and `sampled` of its request as they arrive.

        `awaits` is told how many more completions are awaited from generators. Episodes have deadlines of their own, so
        the group has none. Raises the errors of `EpisodePlayer.play`.
        """
        async with first_error(asyncio.TaskGroup()) as tasks:
            for index in request.progress.missing:
                tasks.create_task(self._play(request, index, awaits))
        request.sampled.complete()

    async def _play(self, request: GroupRequest, index: int, awaits: Callable[[int], None]) -> None:
        config, group = self._parts.config, request.group
        clock = EpisodeClock(config.episodes.timeout_s, self._parts.running_s)
        turns = TurnSampler(
            config,
            self._controls,
            self._generators,
            clock,
            priority=group.order_number,
            decode=self._parts.stages.decode,
        )
        seed = environment_seed(config.run.seed, group.order_number)
        awaits(1)
        try:
            with trace.span(names.EPISODE_PLAY, parent=group.traceparent, group_id=group.group_id):
                async with turns:
                    completion = await EpisodePlayer(self._parts, request, index, turns, clock, seed).play()
        finally:
            awaits(-1)
        request.progress.generators.update(turns.worker_ids)
        request.progress.finish(completion)
        request.sampled.add(completion)
