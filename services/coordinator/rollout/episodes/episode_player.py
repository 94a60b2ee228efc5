r"""One episode: turns of the policy and answers of the environment, until either side or a limit ends it.

start -> first words -> turn 1 -> answer -> turn 2 -> answer -> ... -> result
           ^                        |
           \--- the environment is lost: played again, from its recorded turns where it is deterministic
"""

from dataclasses import replace

from opentelemetry.trace import Span

from services.coordinator.rollout.episodes.limits import StopReason
from services.coordinator.rollout.episodes.messages import BrokenEpisode, EpisodeResult, Observation, PolicyTurn
from services.coordinator.rollout.episodes.player import Player, checked
from services.coordinator.rollout.episodes.stream import EpisodeStream
from services.coordinator.rollout.episodes.transcript import Transcript
from services.coordinator.rollout.episodes.turn_sampler import TurnRequest
from shoal.arrays import Int32Array
from shoal.conversation import ChatMessage
from shoal.episodes.turn_message import opened_by, turn_message
from shoal.errors import InvalidArgument
from shoal.grpo.seeds import turn_seed
from shoal.rollout import Completion, FinishReason
from shoal.telemetry import names, trace
from shoal.token_run import run_of


class EpisodePlayer(Player):
    """Plays an episode of an environment that answers turns."""

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._transcript = Transcript(self._prompt, self._index, self._seed)

    def _completion(self, result: EpisodeResult, stop: StopReason, *, is_truncated: bool) -> Completion:
        return self._transcript.completion(result, stop, is_truncated=is_truncated)

    @property
    def _num_played(self) -> int:
        return len(self._transcript.turns)

    async def _play_at(self, stream: EpisodeStream) -> EpisodeResult:
        """Plays the rest of the episode."""
        with trace.span(names.EPISODE_ENVIRONMENT, turn=0):
            observation = await stream.first()
        while True:
            await self._take(observation)
            if self._stop is StopReason.DONE:
                return checked(await stream.result())
            if self._stop is None:
                turn = await self._next_turn()
                if turn is not None:
                    self._sent.append(turn)
                    with trace.span(names.EPISODE_ENVIRONMENT, turn=turn.number) as span:
                        observation = await stream.answer(turn)
                        _trace_tool_calls(span, observation)
                    continue
            assert self._stop is not None
            return checked(await stream.end(self._stop))

    async def _take(self, observation: Observation) -> None:
        """Records the environment's answer and its tokens, unless the episode ends here."""
        transcript = self._transcript
        if self._stop is not None or transcript.is_observed:  # It was, before the environment was lost.
            return
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
        """Whether a limit was reached before the last turn of the policy."""
        return self._limits.reached(len(self._transcript.turns) - 1, self._transcript.num_calls) is not None

    def _suffix(self, observation: Observation) -> list[int]:
        transcript, renderer = self._transcript, self._stage.renderer
        if not transcript.turns:
            return renderer.opening(self._prompt.messages, observation.messages)
        calls = transcript.turns[-1].message.tool_calls
        try:
            return renderer.observation(transcript.last_token, calls, observation.messages)
        except InvalidArgument as error:  # The fault of this episode alone, not of the task that its siblings share.
            raise BrokenEpisode(f"the answer to turn {len(transcript.turns)} is unusable: {error.message}") from None

    async def _next_turn(self) -> PolicyTurn | None:
        """Samples a turn. Returns the turn for the environment; None if the episode ends with the turn."""
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
        message, thought = await self._parts.stages.beside(lambda: self._message(sampled, number, request.context))
        num_left = self._limits.max_tool_calls - transcript.num_calls
        if limit is None:
            message = replace(message, tool_calls=message.tool_calls[:num_left])
            transcript.num_calls += len(message.tool_calls)
        transcript.policy_says(run_of(sampled), message, sampled.finish_reason, seed, thought)
        if sampled.finish_reason is FinishReason.LENGTH and self._limits.is_full(transcript.num_tokens):
            self._stop = StopReason.MAX_TOKENS
        elif limit is not None and message.tool_calls:
            self._stop = limit
        if self._stop is not None:
            return None
        return PolicyTurn(number, message, sampled.finish_reason, sampled.num_tokens, thought)

    def _message(self, sampled: Completion, number: int, before: Int32Array) -> tuple[ChatMessage, str]:
        """Returns the message, and the mark of the thought in which the message begins."""
        stage = self._stage
        message = turn_message(
            stage.renderer,
            stage.parse,
            stage.tools,
            number,
            before=before,
            sampled=sampled.token_ids,
            withheld=stage.withheld,
        )
        return message, opened_by(stage.renderer, before)


def _trace_tool_calls(span: Span, observation: Observation) -> None:
    """Adds a span for each tool call of an answer. The spans follow each other, and the last span ends now."""
    parent, ended_s_ago = trace.traceparent_of(span), 0.0
    for outcome in reversed(observation.tool_outcomes):
        trace.past_span(
            names.EPISODE_TOOL_CALL,
            parent=parent,
            duration_s=outcome.duration_s,
            ended_s_ago=ended_s_ago,
            tool=outcome.name,
            ok=outcome.ok,
        )
        ended_s_ago += outcome.duration_s
