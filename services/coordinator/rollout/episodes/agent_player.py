r"""One episode of an agent. Each call is a turn after a context that the agent chooses.

agent: call (messages or tokens) -> where it goes on from (agent_calls.py) -> sampled -> recorded -> answered
"""

import asyncio
import contextlib
from dataclasses import dataclass, replace

from services.coordinator.rollout.completions import EpisodeRequest
from services.coordinator.rollout.episodes.agent_calls import (
    CallPlace,
    CallTree,
    Node,
    digests_of,
    find_node,
    place_of,
    readable,
    sampling_of,
)
from services.coordinator.rollout.episodes.limits import EpisodeClock, StopReason
from services.coordinator.rollout.episodes.messages import (
    BrokenEpisode,
    EpisodeResult,
    Observation,
    PolicyAnswer,
    PolicyCall,
    PolicyRefusal,
    RefusalReason,
)
from services.coordinator.rollout.episodes.player import Player, checked
from services.coordinator.rollout.episodes.stage import EpisodeParts
from services.coordinator.rollout.episodes.stream import EpisodeStream
from services.coordinator.rollout.episodes.transcript import Transcript
from services.coordinator.rollout.episodes.turn_sampler import TurnRequest, TurnSampler
from shoal.concurrency import first_error
from shoal.conversation import ChatMessage
from shoal.episodes.turn_message import opened_by, turn_message
from shoal.errors import InvalidArgument
from shoal.grpo.seeds import turn_seed
from shoal.rollout import Completion, EpisodeSegment, FinishReason, Prompt
from shoal.scores import ScoreOutcome
from shoal.telemetry import names, trace
from shoal.token_run import TokenRun, run_of

_HOLD_S = 30.0
"""Longest wait of a call for the end of a pause, in seconds. Many clients give up on an answer after 60 s."""
_RETRY_S = 1.0
"""Seconds after which to call again in a longer pause."""
_MAX_PROMPT_TOKENS = 1 << 19
"""Most tokens in the prompts of all segments, which fill half of the learner's message."""
_MAX_REFUSED = 256
"""Number of refused calls after which an episode ends as if the episode had reached a limit."""


@dataclass(frozen=True)
class _Said:
    """The sampled answer to a call."""

    run: TokenRun
    message: ChatMessage
    finish_reason: FinishReason
    seed: int
    digest: bytes | None
    """The digest of the conversation up to the answer; None if the context is tokens."""
    opened_thought: str
    """The field of the same name in `EpisodeTurn`."""


class AgentPlayer(Player):
    """Plays an episode of an agent."""

    def __init__(self, parts: EpisodeParts, request: EpisodeRequest, turns: TurnSampler, clock: EpisodeClock) -> None:
        super().__init__(parts, request, turns, clock)
        # After the agent's own prompts, not after the prompt of the data.
        self._limits = replace(self._limits, max_tokens=request.sampling.max_completion_tokens)

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._tree = CallTree()
        self._answered: dict[str, Node] = {}
        """Turns of the episode by the id of their call, in the order of sampling."""
        self._num_calls = self._num_turns = self._num_auxiliary = self._num_tool_calls = self._num_refused = 0
        self._num_arriving = self._num_prompt_arriving = 0
        """Tokens of calls in flight: tokens that the calls will add to a segment, and the prompts of new segments."""
        self._was_paused = False

    @property
    def _num_played(self) -> int:
        return sum(len(segment.turns) for segment in self._tree.segments)

    @property
    def _is_excused(self) -> bool:
        return self._was_paused  # Clients give up after some time, or some tries.

    async def _play_at(self, stream: EpisodeStream) -> EpisodeResult:
        with trace.span(names.EPISODE_ENVIRONMENT, turn=0):
            await stream.first()
        answering: set[asyncio.Task[None]] = set()
        async with first_error(asyncio.TaskGroup()) as tasks:
            while not isinstance(call := await stream.next_call(), EpisodeResult):
                task = tasks.create_task(self._answer(stream, call))
                answering.add(task)
                task.add_done_callback(answering.discard)
            for task in answering:  # The agent does not wait for them.
                task.cancel()
        result = checked(call)
        self._settle(result)
        self._stop = self._stop or StopReason.DONE
        return result

    def _settle(self, result: EpisodeResult) -> None:
        """Removes the turns that the agent never read, and sets the rewards of turns. Raises `BrokenEpisode`."""
        for call_id in result.unread_call_ids:
            node = self._answered.get(call_id)
            if node is not None and not node.is_continued:
                del self._answered[call_id]
                node.segment.forget_last_turn()
                self._num_auxiliary += 1
        for call_id, reward in result.turn_rewards.items():
            if call_id not in self._answered:
                raise BrokenEpisode(
                    f"turn_rewards of the agent: the id {call_id!r:.60} belongs to no answer that this episode trains "
                    "on; use the `id` of an answer that the agent read"
                )
            node = self._answered[call_id]
            node.segment.pay(node.turn, reward)

    def _completion(self, result: EpisodeResult, stop: StopReason, *, is_truncated: bool) -> Completion:
        whole = Transcript(self._prompt, self._index, self._seed)
        segments = []
        for part in self._tree.segments:
            if part.turns:
                start = whole.num_tokens
                whole.append(part)
                segments.append(EpisodeSegment(part.prompt_ids, start, whole.num_tokens, part.prompt_messages))
        if not segments and result.outcome is ScoreOutcome.SCORED:
            detail = "the agent read no answer of the policy that can be trained on"
            result = replace(result, outcome=ScoreOutcome.UNSCORABLE, detail=detail)
        completion = whole.completion(result, stop, is_truncated=is_truncated)
        assert completion.episode is not None
        episode = replace(completion.episode, segments=tuple(segments), num_auxiliary_turns=self._num_auxiliary)
        last = episode.turns_in_time[-1].message.content if episode.turns else ""
        return replace(completion, text=last, episode=episode)

    async def _answer(self, stream: EpisodeStream, call: PolicyCall) -> None:
        try:
            reply = await self._reply(call)
        except InvalidArgument as error:
            reply = PolicyRefusal(RefusalReason.INVALID, error.message)
        if isinstance(reply, PolicyRefusal):
            self._num_refused += reply.reason is not RefusalReason.PAUSED
        await stream.reply(call.call_id, reply)

    async def _reply(self, call: PolicyCall) -> PolicyAnswer | PolicyRefusal:
        """Samples a turn. Raises `InvalidArgument` for an invalid call."""
        if not await self._unpaused():
            return PolicyRefusal(RefusalReason.PAUSED, "the run is paused: call again", _RETRY_S)
        digests = await self._parts.stages.beside(lambda: list(digests_of(call.tools, call.messages)))
        if (limit := self._limit(call)) is not None:
            return self._limited(limit)
        node, num_known = find_node(self._tree, call, digests)
        continued = None if node is None or node.is_continued or call.is_auxiliary else node
        # From here on no other call can continue the same turn, and no call exceeds the limits.
        self._claim(call, continued, 1)
        reply: PolicyAnswer | PolicyRefusal | None = None
        try:
            place = await self._parts.stages.beside(lambda: place_of(self._parts.stages, call, node, num_known))
            num_left = self._num_left(call, place, continued)
            if isinstance(num_left, PolicyRefusal):
                return num_left
            new_prompt = 0 if call.is_auxiliary or continued is not None else len(place.context)
            self._num_prompt_arriving += new_prompt
            try:
                reply = await self._sample(call, place, continued, num_left)
            finally:
                self._num_prompt_arriving -= new_prompt
        finally:
            if not isinstance(reply, PolicyAnswer):
                self._claim(call, continued, -1)
        return reply

    async def _unpaused(self) -> bool:
        """Waits for the end of a pause, as long as a client may wait. Returns whether the run continues."""
        if self._turns.is_paused:
            self._was_paused = True
            with self._clock.stopped(), contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._turns.unpaused(), _HOLD_S)
        return not self._turns.is_paused

    async def _sample(
        self, call: PolicyCall, place: CallPlace, continued: Node | None, num_left: int
    ) -> PolicyAnswer | PolicyRefusal:
        self._num_calls += 1
        number, seed = self._num_calls, turn_seed(self._seed, self._num_calls)
        sampling = sampling_of(self._sampling, self._parts.config().episodes.tool_parser, call, place, num_left)
        name = f"{self._name}/play-{self._num_plays}/turn-{number}"
        sampled = await self._turns.sample(TurnRequest(name, place.context, sampling, seed))
        run, finish_reason = run_of(sampled), sampled.finish_reason
        if not call.is_auxiliary and run.num_tokens > (left := self._num_left_in_episode(place, continued)):
            # Other calls have meanwhile used up the tokens that were left.
            run, finish_reason = run.part(0, max(left, 0)), FinishReason.LENGTH
            if not run.num_tokens:
                return self._limited(StopReason.MAX_TOKENS)
        num_new = run.num_tokens + (0 if continued is None else len(place.new_ids))
        self._num_arriving += num_new * (not call.is_auxiliary)
        try:
            said = await self._parts.stages.beside(
                lambda: self._understood(call, place, run, number, finish_reason, sampled.seed)
            )
        finally:
            self._num_arriving -= num_new * (not call.is_auxiliary)
        if not call.is_auxiliary:
            self._record(call, place, continued, said)
        return PolicyAnswer(
            readable(said.message),
            run.token_ids,
            run.logprobs,
            finish_reason,
            len(place.context),
            sampled.oldest_version,
        )

    def _claim(self, call: PolicyCall, continued: Node | None, by: int) -> None:
        """Counts a call as in flight or answered, or reverses the count."""
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
        return PolicyRefusal(RefusalReason.LIMIT, f"the episode has reached its limit {limit}: end the episode")

    def _num_left(self, call: PolicyCall, place: CallPlace, continued: Node | None) -> int | PolicyRefusal:
        """Returns the longest length of the turn, in tokens."""
        num_context = len(place.context)
        in_context = self._parts.config().max_model_len - num_context
        if in_context < 1:
            return PolicyRefusal(
                RefusalReason.CONTEXT_FULL,
                f"the context has {num_context} tokens, but context and answer together may have at most "
                f"{in_context + num_context}: shorten the context",
            )
        limits = [in_context, *(limit for limit in (call.max_tokens, self._limits.max_turn_tokens) if limit)]
        if not call.is_auxiliary:
            in_episode = self._num_left_in_episode(place, continued)
            num_prompt = self._tree.num_prompt_tokens + self._num_prompt_arriving + num_context
            if in_episode < 1 or (continued is None and num_prompt > _MAX_PROMPT_TOKENS):
                return self._limited(StopReason.MAX_TOKENS)
            limits.append(in_episode)
        return min(limits)

    def _num_left_in_episode(self, place: CallPlace, continued: Node | None) -> int:
        num_new = 0 if continued is None else len(place.new_ids)
        return self._limits.max_tokens - self._tree.num_tokens - self._num_arriving - num_new

    def _understood(
        self, call: PolicyCall, place: CallPlace, run: TokenRun, number: int, finish_reason: FinishReason, seed: int
    ) -> _Said:
        """Returns the sampled answer. Runs outside the event loop."""
        renderer, parse = place.renderer, self._stage.parse
        if not call.tools:
            message = ChatMessage("assistant", renderer.sampled_text(run.token_ids.tolist()))
        else:
            message = turn_message(renderer, parse, call.tools, number, before=place.context, sampled=run.token_ids)
        *_, digest = digests_of(call.tools, (*call.messages, readable(message)))
        thought = opened_by(renderer, place.context)
        return _Said(run, message, finish_reason, seed, digest if call.messages else None, thought)

    def _record(self, call: PolicyCall, place: CallPlace, continued: Node | None, said: _Said) -> None:
        """Adds a turn to its segment, or adds a segment that begins with the turn."""
        if continued is not None:
            segment = continued.segment
            segment.observed(Observation(place.new_messages, None, False, ()))
            segment.environment_says(place.new_ids.tolist(), with_support=self._sampling.return_support)
        else:
            prompt = Prompt("", place.context, "", (), call.messages)
            segment = Transcript(prompt, self._index, self._seed)
            self._tree.segments.append(segment)
        number = len(self._answered) + 1
        segment.policy_says(said.run, said.message, said.finish_reason, said.seed, said.opened_thought, number)
        self._num_tool_calls += len(said.message.tool_calls)
        end = len(place.context) + said.run.num_tokens
        node = Node(segment, len(segment.turns) - 1, end, readable(said.message).tool_calls)
        self._tree.add(node, said.digest)
        self._answered[call.call_id] = node
