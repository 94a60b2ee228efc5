r"""One episode of an agent: each of its calls is a turn, behind a context that the agent chooses.

agent: call (messages or tokens) -> where it goes on from (call_tree.py) -> sampled -> recorded -> answered
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from services.coordinator.rollout.episodes.call_tree import CallTree, Node, digests_of
from services.coordinator.rollout.episodes.clock import EpisodeClock
from services.coordinator.rollout.episodes.episode_request import EpisodeRequest
from services.coordinator.rollout.episodes.limits import StopReason
from services.coordinator.rollout.episodes.playing import EpisodeParts, Player, checked
from services.coordinator.rollout.episodes.transcript import Transcript
from services.coordinator.rollout.episodes.turn_sampler import TurnRequest, TurnSampler
from services.coordinator.workers.rewards.environment_pool import EpisodeResult, EpisodeStream, Observation
from services.coordinator.workers.rewards.policy_calls import PolicyAnswer, PolicyCall, PolicyRefusal, RefusalReason
from shoal.arrays import Int32Array
from shoal.concurrency import first_error
from shoal.conversation import ChatMessage, ToolCall
from shoal.episodes.suffix import TurnRenderer
from shoal.episodes.tool_calls import stop_strings
from shoal.episodes.turn_message import turn_message
from shoal.errors import InvalidArgument
from shoal.grpo.seeds import turn_seed
from shoal.rollout import Completion, EpisodeSegment, Prompt, SamplingParams
from shoal.telemetry import names, trace
from shoal.token_run import run_of

_RETRY_S = 5.0
"""When to call again in a pause."""
_MAX_PROMPT_TOKENS = 1 << 19
"""Tokens of the prompts of all segments: a learner gets them in one message, of which they may fill a half."""
_MAX_REFUSED = 256
"""Calls that cannot be answered, after which an episode ends as by a limit."""


@dataclass(frozen=True)
class _Place:
    """Where a call goes on: behind a turn, or, without one, at the beginning of a segment."""

    node: Node | None
    new_ids: Int32Array
    """Tokens behind the turn."""
    new_messages: tuple[ChatMessage, ...]
    renderer: TurnRenderer

    @property
    def context(self) -> Int32Array:
        return self.new_ids if self.node is None else np.concatenate([self.node.token_ids, self.new_ids])


class AgentPlayer(Player):
    """Plays an episode of an agent."""

    def __init__(self, parts: EpisodeParts, request: EpisodeRequest, turns: TurnSampler, clock: EpisodeClock) -> None:
        super().__init__(parts, request, turns, clock)
        # Behind prompts of the agent's own, not behind that of the data.
        self._limits = replace(self._limits, max_tokens=request.sampling.max_completion_tokens)

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._tree = CallTree()
        self._last_text = ""
        self._num_calls = self._num_turns = self._num_auxiliary = self._num_tool_calls = self._num_refused = 0
        self._was_paused = False

    @property
    def _num_played(self) -> int:
        return sum(len(segment.turns) for segment in self._tree.segments)

    @property
    def _is_excused(self) -> bool:
        return self._was_paused  # Clients give up after some tries.

    async def _play_at(self, stream: EpisodeStream) -> EpisodeResult:
        with trace.span(names.EPISODE_ENVIRONMENT):
            await stream.first()
        answering: set[asyncio.Task[None]] = set()
        async with first_error(asyncio.TaskGroup()) as tasks:
            while not isinstance(call := await stream.next_call(), EpisodeResult):
                task = tasks.create_task(self._answer(stream, call))
                answering.add(task)
                task.add_done_callback(answering.discard)
            for task in answering:  # The agent does not wait for them.
                task.cancel()
        self._stop = self._stop or StopReason.DONE
        return checked(call)

    def _completion(self, result: EpisodeResult, stop: StopReason, *, is_truncated: bool) -> Completion:
        whole = Transcript(self._prompt, self._index, self._seed)
        segments = []
        for part in self._tree.segments:
            start = whole.num_tokens
            whole.append(part)
            segments.append(EpisodeSegment(part.prompt_ids, start, whole.num_tokens, part.prompt_messages))
        completion = whole.completion(result, stop, is_truncated=is_truncated)
        assert completion.episode is not None
        episode = replace(completion.episode, segments=tuple(segments), num_auxiliary_turns=self._num_auxiliary)
        return replace(completion, text=self._last_text, episode=episode)

    async def _answer(self, stream: EpisodeStream, call: PolicyCall) -> None:
        try:
            reply = await self._reply(call)
        except InvalidArgument as error:
            reply = PolicyRefusal(RefusalReason.INVALID, error.message)
        if isinstance(reply, PolicyRefusal):
            is_pause = reply.reason is RefusalReason.PAUSED
            self._was_paused |= is_pause
            self._num_refused += not is_pause
        await stream.reply(call.call_id, reply)

    async def _reply(self, call: PolicyCall) -> PolicyAnswer | PolicyRefusal:
        """Samples a turn. Raises `InvalidArgument` for a call that makes no sense."""
        if self._turns.is_paused:
            return PolicyRefusal(RefusalReason.PAUSED, "the run is paused: call again", _RETRY_S)
        digests = await self._parts.stages.beside(lambda: list(digests_of(call.tools, call.messages)))
        if (limit := self._limit(call)) is not None:
            return self._limited(limit)
        node, num_known = self._find(call, digests)
        continued = None if node is None or node.is_continued or call.is_auxiliary else node
        # From here on, so that no other call goes on from the same turn, and none is too many.
        self._claim(call, continued, 1)
        reply: PolicyAnswer | PolicyRefusal | None = None
        try:
            place = await self._parts.stages.beside(lambda: self._place(call, node, num_known))
            reply = await self._sample(call, place, continued)
        finally:
            if not isinstance(reply, PolicyAnswer):
                self._claim(call, continued, -1)
        return reply

    async def _sample(self, call: PolicyCall, place: _Place, continued: Node | None) -> PolicyAnswer | PolicyRefusal:
        num_left = self._num_left(call, place, continues=continued is not None)
        if isinstance(num_left, PolicyRefusal):
            return num_left
        self._num_calls += 1
        number, seed = self._num_calls, turn_seed(self._seed, self._num_calls)
        sampling = self._sampling_of(call, place, num_left)
        name = f"{self._name}/play-{self._num_plays}/turn-{number}"
        sampled = await self._turns.sample(TurnRequest(name, place.context, sampling, seed))
        message = await self._parts.stages.beside(lambda: self._message(call, place, sampled, number))
        if not call.is_auxiliary:
            self._record(call, place, continued, sampled, message)
        return PolicyAnswer(
            _readable(message),
            sampled.token_ids,
            sampled.behavior_logprobs,
            sampled.finish_reason,
            len(place.context),
            sampled.oldest_version,
        )

    def _claim(self, call: PolicyCall, continued: Node | None, by: int) -> None:
        """Counts a call that is on its way or was answered, or counts it no longer."""
        if call.is_auxiliary:
            self._num_auxiliary += by
        else:
            self._num_turns += by
        if continued is not None:
            continued.is_continued = by > 0

    def _limit(self, call: PolicyCall) -> StopReason | None:
        if self._stop is not None:
            return self._stop
        if self._num_refused >= _MAX_REFUSED:
            return StopReason.MAX_TURNS
        if call.is_auxiliary:
            return StopReason.MAX_TURNS if self._num_auxiliary >= self._limits.max_turns else None
        return self._limits.reached(self._num_turns, self._num_tool_calls)

    def _limited(self, limit: StopReason) -> PolicyRefusal:
        self._stop = limit
        return PolicyRefusal(RefusalReason.LIMIT, f"the episode has reached its limit {limit}: end it")

    def _find(self, call: PolicyCall, digests: Sequence[bytes]) -> tuple[Node | None, int]:
        if len(call.token_ids):
            node = self._tree.behind_tokens(call.token_ids)
            return node, 0 if node is None else node.end
        if not call.messages:
            raise InvalidArgument("the call has neither messages nor tokens")
        if call.messages[-1].role == "assistant":
            raise InvalidArgument("messages: the last one must not be the policy's own: let another follow it")
        node, num_known = self._tree.behind_messages(digests)
        if any(message.role == "assistant" for message in call.messages[num_known:]):
            return None, 0  # Somebody else's words, or the policy's in another form.
        return node, num_known

    def _place(self, call: PolicyCall, node: Node | None, num_known: int) -> _Place:
        """Renders what is new. Beside the event loop."""
        renderer = self._parts.stages.renderer_for(call.tools)
        if len(call.token_ids):
            return _Place(node, call.token_ids[num_known:], (), renderer)
        new = call.messages[num_known:]
        if node is None:
            return _Place(None, np.array(renderer.beginning(call.messages), np.int32), call.messages, renderer)
        token_ids = renderer.observation(int(node.token_ids[-1]), node.calls, new)
        return _Place(node, np.array(token_ids, np.int32), new, renderer)

    def _num_left(self, call: PolicyCall, place: _Place, *, continues: bool) -> int | PolicyRefusal:
        """Returns how long the turn may be."""
        num_context = len(place.context)
        in_context = self._parts.config.max_model_len - num_context
        if in_context < 1:
            return PolicyRefusal(
                RefusalReason.CONTEXT_FULL,
                f"the context is {num_context} tokens; the policy takes {in_context + num_context} with its answer: "
                "shorten it",
            )
        in_episode = self._limits.max_tokens - self._tree.num_tokens - (len(place.new_ids) if continues else 0)
        is_over = not continues and self._tree.num_prompt_tokens + num_context > _MAX_PROMPT_TOKENS
        if call.is_auxiliary:
            in_episode, is_over = in_context, False
        if in_episode < 1 or is_over:
            return self._limited(StopReason.MAX_TOKENS)
        wanted = [limit for limit in (call.max_tokens, self._limits.max_turn_tokens) if limit]
        return min(in_context, in_episode, *wanted)

    def _sampling_of(self, call: PolicyCall, place: _Place, num_left: int) -> SamplingParams:
        own = self._sampling
        unknown = [text for text in call.stop_strings if text not in own.stop_strings]
        if unknown:
            raise InvalidArgument(f"stop: {unknown[0]!r:.60} is not among the run's sampling.stop_strings")
        ends = stop_strings(self._parts.config.episodes.tool_parser, call.tools)
        return replace(
            own,
            max_completion_tokens=num_left,
            stop_token_ids=tuple({*own.stop_token_ids, place.renderer.end_of_turn, *call.stop_token_ids}),
            stop_strings=tuple(dict.fromkeys((*own.stop_strings, *ends))),
        )

    def _message(self, call: PolicyCall, place: _Place, sampled: Completion, number: int) -> ChatMessage:
        if not call.tools:
            return ChatMessage("assistant", place.renderer.sampled_text(sampled.token_ids.tolist()))
        renderer, parse = place.renderer, self._stage.parse
        return turn_message(renderer, parse, call.tools, number, before=place.context, sampled=sampled.token_ids)

    def _record(
        self, call: PolicyCall, place: _Place, continued: Node | None, sampled: Completion, message: ChatMessage
    ) -> None:
        """Adds a turn to its segment, or a segment that begins with it."""
        if continued is not None:
            segment = continued.segment
            segment.observed(Observation(place.new_messages, None, False, ()))
            segment.environment_says(place.new_ids.tolist(), with_support=self._sampling.return_support)
        else:
            prompt = Prompt("", place.context, "", (), call.messages)
            segment = Transcript(prompt, self._index, self._seed)
            self._tree.segments.append(segment)
        segment.policy_says(run_of(sampled), message, sampled.finish_reason, sampled.seed)
        self._num_tool_calls += len(message.tool_calls)
        self._last_text = message.content
        answer, end = _readable(message), len(place.context) + sampled.num_tokens
        *_, digest = digests_of(call.tools, (*call.messages, answer))
        self._tree.add(Node(segment, end, answer.tool_calls), digest if call.messages else None)


def _readable(message: ChatMessage) -> ChatMessage:
    """Returns an answer as its client reads it: with the calls that have a name and arguments. The others stay text."""
    calls = tuple(call for call in message.tool_calls if _is_readable(call))
    if len(calls) == len(message.tool_calls):
        return message
    unreadable = [call.raw for call in message.tool_calls if not _is_readable(call)]
    return replace(message, content="\n".join(filter(None, (message.content, *unreadable))), tool_calls=calls)


def _is_readable(call: ToolCall) -> bool:
    try:
        return bool(call.name) and isinstance(json.loads(call.arguments_json), dict)
    except ValueError:
        return False
