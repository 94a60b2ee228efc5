"""The common part of all episodes: each is played to its end or time limit, and repeated after a loss."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from dataclasses import replace

from services.coordinator.rollout.completions import EpisodeRequest
from services.coordinator.rollout.episodes.limits import EpisodeClock, EpisodeLimits, StopReason
from services.coordinator.rollout.episodes.messages import BrokenEpisode, EpisodeResult, EpisodeStart, PolicyTurn
from services.coordinator.rollout.episodes.stage import EpisodeParts, Stage
from services.coordinator.rollout.episodes.stream import EnvironmentLost, EpisodeStream
from services.coordinator.rollout.episodes.turn_sampler import TurnSampler
from services.coordinator.workers.lost_work import LostWork, WorkFailed
from shoal.errors import DeadlineExceeded
from shoal.rollout import Completion, Prompt
from shoal.scores import ScoreOutcome

_NO_RESULT = EpisodeResult(ScoreOutcome.FAILED, None, {}, "")


class Player(ABC):
    """Plays one episode."""

    def __init__(self, parts: EpisodeParts, request: EpisodeRequest, turns: TurnSampler, clock: EpisodeClock) -> None:
        assert request.prompt.environment is not None
        self._parts = parts
        self._prompt: Prompt = request.prompt
        self._stage: Stage = parts.stages.of(request.prompt.environment)
        self._limits = EpisodeLimits.of(
            parts.config(), len(self._prompt.token_ids), request.sampling.max_completion_tokens
        )
        self._sampling = replace(
            request.sampling,
            stop_token_ids=tuple({*request.sampling.stop_token_ids, *self._stage.renderer.ends_of_turn}),
            stop_strings=(*request.sampling.stop_strings, *self._stage.stop_strings),
        )
        sharing = {one.name: one.episodes_per_process for one in parts.config().environments}
        self._name = request.name
        self._start = EpisodeStart(
            request.name,
            request.prompt.environment,
            request.environment_seed,
            self._prompt.messages,
            parts.config().episodes.call_timeout_s,
            parts.config().max_model_len,
            sharing[request.prompt.environment.environment],
        )
        self._index = request.index
        self._seed = request.seed
        self._turns = turns
        self._clock = clock
        self._lost = LostWork(parts.config().episodes.max_losses, turns.unpaused, clock.stopped)
        self._num_plays = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Forgets the turns so far."""
        self._num_plays += 1
        self._sent: list[PolicyTurn] = []
        self._stop: StopReason | None = None

    @abstractmethod
    async def _play_at(self, stream: EpisodeStream) -> EpisodeResult:
        """Plays the rest of the episode, and sets `_stop`."""

    @abstractmethod
    def _completion(self, result: EpisodeResult, stop: StopReason, *, is_truncated: bool) -> Completion:
        """Returns the episode as a completion."""

    @property
    @abstractmethod
    def _num_played(self) -> int:
        """Number of turns so far."""

    @property
    def _is_excused(self) -> bool:
        """Whether the cause of a failure is the run rather than the environment."""
        return False

    async def play(self) -> Completion:
        """Plays the episode to its end. The completion has the outcome FAILED after a failure or a timeout.

        Raises `InvalidArgument` for a task that the environment refuses, and `FailedPrecondition` if no worker is
        connected within coordinator.worker_timeout_s.
        """
        try:
            async with self._clock.limit():
                result = await self._play_until_it_ends()
        except TimeoutError:
            limit_s = self._parts.config().episodes.timeout_s
            return self._failed(StopReason.TIMEOUT, f"the episode exceeds episodes.timeout_s ({limit_s:g} s)")
        except DeadlineExceeded as error:
            return self._failed(StopReason.TIMEOUT, error.message)
        except (WorkFailed, BrokenEpisode) as error:
            return self._failed(StopReason.FAILED, str(error))
        assert self._stop is not None
        return self._completion(result, self._stop, is_truncated=self._stop.is_limit)

    def _failed(self, stop: StopReason, detail: str) -> Completion:
        return self._completion(replace(_NO_RESULT, detail=detail), stop, is_truncated=stop is StopReason.TIMEOUT)

    async def _play_until_it_ends(self) -> EpisodeResult:
        """Plays the episode, and repeats it after each loss of its environment."""
        async for _ in self._lost:
            error: EnvironmentLost | BrokenEpisode
            try:
                return await self._play_where_there_is_room()
            except EnvironmentLost as lost:
                error, is_given_up = lost, self._lost.count(lost, self._num_played)
            except BrokenEpisode as broken:
                if self._stage.is_deterministic:  # It would break again.
                    raise
                failed = WorkFailed(self._name, str(broken), is_loss=not self._is_excused)
                error, is_given_up = broken, self._lost.count(failed)
            if is_given_up:
                raise error
            if not self._stage.is_deterministic:
                self._begin_anew()
            self._parts.events.add(
                "episode_replayed", f"the episode {self._name} is played again: {error}", episode=self._name
            )
        raise AssertionError("unreachable")

    async def _play_where_there_is_room(self) -> EpisodeResult:
        """Plays the episode at a service. Waits while the episode cannot begin because too many episodes are open."""
        while True:
            try:
                async with contextlib.AsyncExitStack() as stack:
                    with self._clock.stopped():  # As long as there is no service.
                        playing = self._parts.environments.play(self._start, self._sent)
                        stream = await stack.enter_async_context(playing)
                    return await self._play_at(stream)
            except EnvironmentLost as lost:
                if lost.retry_after_s is None:
                    raise
                with self._clock.stopped():
                    await asyncio.sleep(lost.retry_after_s)
                    await self._turns.unpaused()


def checked(result: EpisodeResult) -> EpisodeResult:
    """Returns the result. Raises `BrokenEpisode` if the result reports that the environment broke."""
    if result.outcome is ScoreOutcome.FAILED:
        raise BrokenEpisode(result.detail)
    return result
