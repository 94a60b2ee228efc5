r"""One episode: turns of the policy and answers of its environment, until one of them or a limit ends it.

start -> first words -> turn 1 -> answer -> turn 2 -> answer -> ... -> result
           ^                        |
           \--- the environment is lost: played again, from its recorded turns where it is deterministic
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from services.coordinator.rollout.episodes.clock import EpisodeClock
from services.coordinator.rollout.episodes.episode_request import EpisodeRequest
from services.coordinator.rollout.episodes.limits import Limits, StopReason
from services.coordinator.rollout.episodes.stage import Stage, Stages
from services.coordinator.rollout.episodes.transcript import Transcript
from services.coordinator.rollout.episodes.turn_sampler import TurnRequest, TurnSampler
from services.coordinator.workers.losses import Losses, WorkFailed
from services.coordinator.workers.rewards.environment_pool import (
    BrokenEpisode,
    EnvironmentLost,
    EnvironmentPool,
    EpisodeResult,
    EpisodeStart,
    EpisodeStream,
    Observation,
    PolicyTurn,
)
from shoal.arrays import Int32Array
from shoal.config import RunConfig
from shoal.conversation import ChatMessage
from shoal.episodes.turn_message import turn_message
from shoal.errors import DeadlineExceeded
from shoal.grpo.seeds import turn_seed
from shoal.rollout import Completion, FinishReason, Prompt, ScoreOutcome
from shoal.telemetry import names, trace
from shoal.token_run import run_of

_NO_RESULT = EpisodeResult(ScoreOutcome.FAILED, None, {}, "")


@dataclass(frozen=True)
class EpisodeParts:
    """What all episodes of a run share."""

    config: RunConfig
    environments: EnvironmentPool
    stages: Stages
    running_s: Callable[[], float]
    note: Callable[[str, str], None]
    """Reports that an episode is played again: its name, and why."""


class EpisodePlayer:
    """Plays one episode."""

    def __init__(self, parts: EpisodeParts, request: EpisodeRequest, turns: TurnSampler, clock: EpisodeClock) -> None:
        assert request.prompt.environment is not None
        self._parts = parts
        self._prompt: Prompt = request.prompt
        self._stage: Stage = parts.stages[request.prompt.environment.environment]
        self._limits = Limits.of(parts.config, len(self._prompt.token_ids), request.sampling.max_completion_tokens)
        self._sampling = replace(
            request.sampling,
            stop_token_ids=tuple({*request.sampling.stop_token_ids, self._stage.renderer.end_of_turn}),
            stop_strings=(*request.sampling.stop_strings, *self._stage.stop_strings),
        )
        self._name = request.name
        self._start = EpisodeStart(
            request.name,
            request.prompt.environment,
            request.environment_seed,
            self._prompt.messages,
            parts.config.episodes.call_timeout_s,
        )
        self._index = request.index
        self._seed = request.seed
        self._turns = turns
        self._clock = clock
        self._losses = Losses(parts.config.episodes.max_losses)
        self._furthest = 0
        """Turns that were played at the loss that got furthest."""
        self._num_plays = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._num_plays += 1
        self._transcript = Transcript(self._prompt, self._index, self._seed)
        self._sent: list[PolicyTurn] = []
        self._stop: StopReason | None = None

    async def play(self) -> Completion:
        """Plays the episode to its end. What breaks ends in the outcome FAILED.

        Raises `InvalidArgument` for a task that the environment refuses, `FailedPrecondition` when no worker is there
        within coordinator.worker_timeout_s.
        """
        try:
            async with self._clock.limit():
                result = await self._play_until_it_ends()
        except TimeoutError:
            limit_s = self._parts.config.episodes.timeout_s
            return self._failed(StopReason.TIMEOUT, f"not over within episodes.timeout_s ({limit_s:g} s)")
        except DeadlineExceeded as error:
            return self._failed(StopReason.TIMEOUT, error.message)
        except (WorkFailed, BrokenEpisode) as error:
            return self._failed(StopReason.FAILED, str(error))
        assert self._stop is not None
        return self._transcript.completion(result, self._stop, is_truncated=self._stop.is_limit)

    def _failed(self, stop: StopReason, detail: str) -> Completion:
        return self._transcript.completion(
            replace(_NO_RESULT, detail=detail), stop, is_truncated=stop is StopReason.TIMEOUT
        )

    async def _play_until_it_ends(self) -> EpisodeResult:
        """Plays the episode, and once more after each loss of its environment."""
        while True:
            error: EnvironmentLost | BrokenEpisode
            try:
                async with contextlib.AsyncExitStack() as stack:
                    with self._clock.stopped():  # While there is no service.
                        playing = self._parts.environments.play(self._start, self._sent)
                        stream = await stack.enter_async_context(playing)
                    return await self._play_at(stream)
            except EnvironmentLost as lost:
                error = lost
                self._count(lost)
            except BrokenEpisode as broken:
                if self._stage.is_deterministic:  # It would break again.
                    raise
                error = broken
                self._losses.count(WorkFailed(self._name, str(broken)))
            if self._losses.are_too_many:
                raise error
            if not self._stage.is_deterministic:
                self._begin_anew()
            self._parts.note(self._name, str(error))
            with self._clock.stopped():
                await self._losses.pause()

    def _count(self, lost: EnvironmentLost) -> None:
        """Counts a loss. One that comes after a further turn is the first: what kills from outside hits any turn."""
        if len(self._transcript.turns) > self._furthest:
            self._furthest, self._losses = len(self._transcript.turns), Losses(self._parts.config.episodes.max_losses)
        self._losses.count(lost)

    async def _play_at(self, stream: EpisodeStream) -> EpisodeResult:
        """Plays the episode from where it is to its end."""
        with trace.span(names.EPISODE_ENVIRONMENT):
            observation = await stream.first()
        while True:
            await self._take(observation)
            if self._stop is StopReason.DONE:
                return _checked(await stream.result())
            if self._stop is None:
                turn = await self._next_turn()
                if turn is not None:
                    self._sent.append(turn)
                    with trace.span(names.EPISODE_ENVIRONMENT):
                        observation = await stream.answer(turn)
                    continue
            assert self._stop is not None
            return _checked(await stream.end(self._stop))

    async def _take(self, observation: Observation) -> None:
        """Records what the environment says, and the tokens of it, unless the episode ends here."""
        if self._stop is not None or self._transcript.is_observed:  # It was, before the environment was lost.
            return
        transcript = self._transcript
        transcript.observed(observation)
        if observation.is_done:
            self._stop = StopReason.DONE
            return
        if transcript.turns:
            message = transcript.turns[-1].message
            is_silent = not observation.messages
            if not message.tool_calls and (is_silent or self._is_last):
                self._stop = StopReason.NO_CALL
                return
            limit = self._limits.reached(len(transcript.turns), transcript.num_calls)
            if limit is not None and not (message.tool_calls and observation.messages):
                self._stop = limit
                return
        token_ids = await self._parts.stages.beside(lambda: self._suffix(observation))
        if self._limits.turn_tokens(transcript.num_tokens + len(token_ids)) < 1:
            self._stop = StopReason.MAX_TOKENS
            return
        transcript.environment_says(token_ids, with_support=self._sampling.return_support)

    @property
    def _is_last(self) -> bool:
        """Whether a limit was reached before the last turn, which was the policy's word after it."""
        transcript = self._transcript
        before = transcript.turns[:-1]
        return self._limits.reached(len(before), transcript.num_calls) is not None

    def _suffix(self, observation: Observation) -> list[int]:
        transcript, renderer = self._transcript, self._stage.renderer
        if not transcript.turns:
            return renderer.opening(self._prompt.messages, observation.messages)
        calls = transcript.turns[-1].message.tool_calls
        return renderer.observation(transcript.last_token, calls, observation.messages)

    async def _next_turn(self) -> PolicyTurn | None:
        """Samples a turn. Returns it for the environment; None where the episode ends with it."""
        transcript, number = self._transcript, len(self._transcript.turns) + 1
        limit = self._limits.reached(number - 1, transcript.num_calls)
        seed = turn_seed(self._seed, number)
        request = TurnRequest(
            f"{self._name}/play-{self._num_plays}/turn-{number}",
            transcript.context,
            replace(self._sampling, max_completion_tokens=self._limits.turn_tokens(transcript.num_tokens)),
            seed,
        )
        sampled = await self._turns.sample(request)
        message = await self._parts.stages.beside(lambda: self._message(sampled, number, request.context))
        num_left = self._limits.max_tool_calls - transcript.num_calls
        if limit is None:
            message = replace(message, tool_calls=message.tool_calls[:num_left])
            transcript.num_calls += len(message.tool_calls)
        transcript.policy_says(run_of(sampled), message, sampled.finish_reason, seed)
        if sampled.finish_reason is FinishReason.LENGTH and self._limits.is_full(transcript.num_tokens):
            self._stop = StopReason.MAX_TOKENS
        elif limit is not None and message.tool_calls:
            self._stop = limit
        if self._stop is not None:
            return None
        return PolicyTurn(number, message, sampled.finish_reason, sampled.num_tokens)

    def _message(self, sampled: Completion, number: int, before: Int32Array) -> ChatMessage:
        stage = self._stage
        return turn_message(stage.renderer, stage.parse, stage.tools, number, before=before, sampled=sampled.token_ids)


def _checked(result: EpisodeResult) -> EpisodeResult:
    if result.outcome is ScoreOutcome.FAILED:
        raise BrokenEpisode(result.detail)
    return result
