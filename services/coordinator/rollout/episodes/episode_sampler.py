"""The episodes of a group or of a held-out question, each played independently of the others."""

import asyncio
from collections.abc import Callable, Sequence

from services.coordinator.rollout.completions import EpisodeRequest, GroupRequest
from services.coordinator.rollout.episodes.agent_player import AgentPlayer
from services.coordinator.rollout.episodes.episode_player import EpisodePlayer
from services.coordinator.rollout.episodes.limits import EpisodeClock
from services.coordinator.rollout.episodes.player import Player
from services.coordinator.rollout.episodes.stage import EpisodeParts
from services.coordinator.rollout.episodes.turn_sampler import BatchedTurnSampler, TurnSampler
from services.coordinator.rollout.rounds import EpisodeTurns
from shoal.concurrency import first_error
from shoal.grpo.seeds import environment_seed
from shoal.rollout import Completion
from shoal.scores import ScoreOutcome
from shoal.telemetry import names, trace


class EpisodeSampler:
    """Gets the completions of groups whose prompt names an environment."""

    def __init__(self, parts: EpisodeParts) -> None:
        self._parts = parts

    async def sample(self, request: GroupRequest, awaits: Callable[[int], None]) -> None:
        """Adds completions to `progress` and `sampled` of a request, as they arrive, until the group lacks none.

        Episodes have their own deadlines, so the group has no deadline. Raises the errors of `Player.play`.
        """
        async with first_error(asyncio.TaskGroup()) as tasks:
            for index in request.progress.missing:
                tasks.create_task(self._add(request, index, awaits))
        request.sampled.complete()

    async def _add(self, request: GroupRequest, index: int, awaits: Callable[[int], None]) -> None:
        group, rounds = request.group, request.turns
        turns = None if rounds is None else EpisodeTurns(rounds, ((group.order_number, request.is_greedy), index))
        episode = EpisodeRequest(
            f"{request.request_id}/{index}",
            group.prompt,
            index,
            seed=request.progress.seeds[index],
            environment_seed=environment_seed(self._parts.config().run.seed, group.order_number),
            sampling=request.sampling,
            priority=group.order_number,
            turns=turns,
        )
        awaits(1)
        try:
            with trace.span(names.EPISODE_PLAY, parent=group.traceparent, group_id=group.group_id, sample_index=index):
                completion, worker_ids = await self._play(episode)
        finally:
            awaits(-1)
        request.progress.generators.update(worker_ids)
        request.progress.finish(completion)
        request.sampled.add(completion)

    async def answer(self, episodes: Sequence[EpisodeRequest]) -> tuple[Completion, ...]:
        """Returns the completions of an evaluation. Raises the errors of `Player.play`."""
        async with first_error(asyncio.TaskGroup()) as tasks:
            playing = [tasks.create_task(self._play(episode)) for episode in episodes]
        return tuple(task.result()[0] for task in playing)

    async def _play(self, episode: EpisodeRequest) -> tuple[Completion, dict[str, None]]:
        """Returns the completion, and the generators that sampled it."""
        rounds = episode.turns
        if rounds is not None and (before := rounds.played) is not None:
            return before
        clock = EpisodeClock(self._parts.config().episodes.timeout_s, self._parts.pause.running_s)
        async with (
            TurnSampler(self._parts, clock, episode)
            if rounds is None
            else BatchedTurnSampler(self._parts, clock, episode, rounds)
        ) as turns:
            completion = await self._player(episode)(self._parts, episode, turns, clock).play()
        assert completion.episode is not None
        if rounds is not None and completion.episode.outcome is not ScoreOutcome.FAILED:
            rounds.keep(completion, turns.worker_ids)
        return completion, turns.worker_ids

    def _player(self, episode: EpisodeRequest) -> type[Player]:
        assert episode.prompt.environment is not None
        is_agent = self._parts.stages[episode.prompt.environment.environment].is_agent
        return AgentPlayer if is_agent else EpisodePlayer
