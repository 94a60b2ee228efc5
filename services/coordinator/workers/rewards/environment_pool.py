"""The environments of a run, at its reward services: what they offer, and the streams of episodes."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from services.coordinator.workers.losses import WorkFailed
from services.coordinator.workers.member import Member
from services.coordinator.workers.rewards.policy_calls import (
    PolicyAnswer,
    PolicyCall,
    PolicyRefusal,
    call_from_wire,
    reply_to_wire,
)
from services.coordinator.workers.rewards.reward_pool import LIST_TIMEOUT_S, RewardPool
from shoal.conversation import ChatMessage, ToolDefinition
from shoal.error_reasons import ErrorReason
from shoal.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    ShoalError,
    Unavailable,
)
from shoal.rollout import EnvironmentTask, FinishReason, ScoreOutcome, ToolOutcome
from shoal.v1 import environment_pb2, environment_pb2_grpc
from shoal.wire import finish_reason_to_wire
from shoal.wire.conversations import chat_message_from_wire, chat_message_to_wire, struct_to_wire, tool_from_wire
from shoal.wire.episodes import tool_outcome_from_wire
from shoal.wire.scores import outcome_from_wire

STREAM_TIMEOUT_S = 7 * 86400.0
"""The episode has a deadline of its own."""
GRACE_S = 30.0
"""Time that an answer may take beyond that of the calls into its process: to start a process, for example."""
_LAST_WORDS_S = 1.0
"""For a stream to say why it ends, once its service is lost."""
_NOT_THE_EPISODES = frozenset({ErrorReason.NOT_READY, ErrorReason.SHUTTING_DOWN})
"""Reasons for which a service ends episodes, whatever they are."""


@dataclass(frozen=True)
class EnvironmentInfo:
    """What an environment offers."""

    name: str
    tools: tuple[ToolDefinition, ...]
    is_deterministic: bool
    unavailable: str
    """Why it cannot work at the service; empty if it can."""
    is_agent: bool = False
    """Whether it calls the policy itself."""


@dataclass(frozen=True)
class EpisodeStart:
    """The start of an episode."""

    episode_id: str
    task: EnvironmentTask
    seed: int
    messages: tuple[ChatMessage, ...]
    call_timeout_s: float
    max_context_tokens: int = 0
    num_sharing: int = 1
    """Episodes that may share its process, where calls that block come one after the other."""


@dataclass(frozen=True)
class PolicyTurn:
    """A turn of the policy, as the environment sees it."""

    number: int
    """From 1."""
    message: ChatMessage
    finish_reason: FinishReason
    num_tokens: int


@dataclass(frozen=True)
class Observation:
    """The environment's answer to the start or to a turn."""

    messages: tuple[ChatMessage, ...]
    reward: float | None
    is_done: bool
    tool_outcomes: tuple[ToolOutcome, ...]


@dataclass(frozen=True)
class EpisodeResult:
    """What the environment says at the end of an episode."""

    outcome: ScoreOutcome
    reward: float | None
    metrics: dict[str, float]
    detail: str
    turn_rewards: Mapping[str, float] = field(default_factory=dict)
    """Of an agent: rewards of turns, by the id of the call."""
    unread_call_ids: tuple[str, ...] = ()
    """Of an agent: the calls whose answers it never read."""


class EnvironmentPool:
    """The environments of a run. Each episode goes to the reward service with the least work."""

    def __init__(self, rewards: RewardPool) -> None:
        self._rewards = rewards

    async def list(self) -> dict[str, EnvironmentInfo]:
        """Returns the environments, by name. Asks another service where one is lost or does not answer.

        Raises `FailedPrecondition` when no service offers any.
        """
        while True:
            member = await self._rewards.choose()
            try:
                response = await _stub(member).ListEnvironments(
                    environment_pb2.ListEnvironmentsRequest(), timeout=LIST_TIMEOUT_S
                )
            except (Aborted, Unavailable, DeadlineExceeded, FailedPrecondition) as error:
                if error.reason == ErrorReason.UNIMPLEMENTED:
                    raise
                await self._rewards.leave(member, error)
            else:
                return {info.name: _info(info) for info in response.environments}

    @contextlib.asynccontextmanager
    async def play(self, start: EpisodeStart, replay: Sequence[PolicyTurn]) -> AsyncIterator["EpisodeStream"]:
        """Opens the stream of an episode, which ends with the block. `replay` are the turns that were played before.

        Raises `FailedPrecondition` when no service is there within coordinator.worker_timeout_s.
        """
        member = await self._rewards.choose()
        member.outstanding += 1
        call = _stub(member).RunEpisode(timeout=STREAM_TIMEOUT_S)
        try:
            yield EpisodeStream(call, member, self._rewards, start, replay)
        finally:
            call.cancel()
            member.outstanding -= 1


class EnvironmentLost(WorkFailed):
    """The stream of an episode ended without its result. The episode may be played again."""

    def __init__(self, worker: str, reason: str, *, is_loss: bool = True, retry_after_s: float | None = None) -> None:
        """`retry_after_s`: where too many episodes are open, so that it was not begun, when it may be."""
        super().__init__(worker, reason, is_loss=is_loss)
        self.retry_after_s = retry_after_s


class BrokenEpisode(Exception):
    """The environment broke, and said so."""


class EpisodeStream:
    """An episode at its environment.

    The methods raise `EnvironmentLost` when the stream has ended, `BrokenEpisode` when the environment broke, and
    `InvalidArgument` for a task that it refuses.
    """

    def __init__(
        self, call: Any, member: Member, rewards: RewardPool, start: EpisodeStart, replay: Sequence[PolicyTurn]
    ) -> None:
        self._call = call
        self._member = member
        self._rewards = rewards
        self._start = start
        self._replay = replay
        self._writing = asyncio.Lock()
        self._had_ended = False
        """Whether the stream had ended before the last request, or its service was lost."""

    async def first(self) -> Observation:
        """Begins the episode. Returns the answer to the start, or to the last turn that is played again."""
        start = environment_pb2.EpisodeStart(
            episode_id=self._start.episode_id,
            environment=self._start.task.environment,
            task=struct_to_wire(self._start.task.task),
            seed=self._start.seed,
            messages=map(chat_message_to_wire, self._start.messages),
            call_timeout_s=self._start.call_timeout_s,
            max_context_tokens=self._start.max_context_tokens,
            replay=map(_turn_to_wire, self._replay),
        )
        request = environment_pb2.RunEpisodeRequest(start=start)
        return await self._observation(request, len(self._replay), num_calls=1 + len(self._replay))

    async def answer(self, turn: PolicyTurn) -> Observation:
        """Sends a turn. Returns what the environment answers."""
        request = environment_pb2.RunEpisodeRequest(turn=_turn_to_wire(turn))
        return await self._observation(request, turn.number, num_calls=1)

    async def next_call(self) -> PolicyCall | EpisodeResult:
        """Waits for a call of an agent, or the result. There is no limit of time: that of the episode ends it."""
        response = await self._read(None)
        if response.HasField("result"):
            return _result(response.result)
        if not response.HasField("call"):
            raise self._lost(f"it sent {response.WhichOneof('part')} in place of a call")
        try:
            return call_from_wire(response.call)
        except InvalidArgument as error:
            raise self._lost(f"it sent a call that cannot be read: {error.message}") from None

    async def reply(self, call_id: str, reply: PolicyAnswer | PolicyRefusal) -> None:
        """Answers a call of an agent, or refuses it."""
        await self._write(environment_pb2.RunEpisodeRequest(reply=reply_to_wire(call_id, reply)))

    async def end(self, stop_reason: str) -> EpisodeResult:
        """Ends the episode from this side. Returns its result."""
        await self.send_end(stop_reason)
        return await self.result()

    async def send_end(self, stop_reason: str) -> None:
        """Ends the episode from this side. What an agent has sent before comes before the result."""
        await self._write(environment_pb2.RunEpisodeRequest(end=environment_pb2.EpisodeEnd(stop_reason=stop_reason)))

    async def result(self) -> EpisodeResult:
        """Returns the result of an episode that is done."""
        response = await self._read(num_calls=1)
        if not response.HasField("result"):
            raise self._lost(f"it sent {response.WhichOneof('part')} in place of the result")
        return _result(response.result)

    async def _observation(
        self, request: environment_pb2.RunEpisodeRequest, number: int, *, num_calls: int
    ) -> Observation:
        await self._write(request)
        response = await self._read(num_calls)
        if response.HasField("result"):  # It broke: the result says how.
            raise BrokenEpisode(response.result.detail)
        observation = response.observation
        if not response.HasField("observation") or observation.turn != number:
            raise self._lost(f"it answered turn {observation.turn} in place of {number}")
        return Observation(
            tuple(map(chat_message_from_wire, observation.messages)),
            _finite(observation.reward) if observation.HasField("reward") else None,
            observation.done,
            tuple(map(tool_outcome_from_wire, observation.tool_outcomes)),
        )

    async def _write(self, request: environment_pb2.RunEpisodeRequest) -> None:
        # A stream that has ended says why when it is read.
        self._had_ended = self._call.done() or self._member.lost.is_set()
        with contextlib.suppress(ShoalError, asyncio.InvalidStateError):
            async with self._writing:
                await self._unless_lost(self._call.write(request), None)

    async def _read(self, num_calls: int | None) -> environment_pb2.RunEpisodeResponse:
        start = self._start
        limit_s = None if num_calls is None else num_calls * start.call_timeout_s * start.num_sharing + GRACE_S
        try:
            response = await self._unless_lost(self._call.read(), limit_s)
        except ShoalError as error:
            raise await self._failure(error) from error
        if response is grpc.aio.EOF:
            raise self._lost("it ended the episode without a result")
        assert isinstance(response, environment_pb2.RunEpisodeResponse)
        return response

    async def _unless_lost(self, part: Coroutine[Any, Any, Any], limit_s: float | None) -> Any:
        """Returns the result of a part of the call. Raises `EnvironmentLost` at the limit, and once the service is
        lost: the connection to a machine that has gone stays silent."""
        work, lost = asyncio.ensure_future(part), asyncio.ensure_future(self._member.lost.wait())
        try:
            await asyncio.wait([work, lost], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                await asyncio.wait([work], timeout=_LAST_WORDS_S)
            if work.done():
                return work.result()
            if lost.done():
                raise self._lost(f"it is lost: {self._member.record.loss_reason}", is_loss=not self._had_ended)
            raise self._lost(f"it did not answer within {limit_s or 0:g} s")
        finally:
            work.cancel()
            lost.cancel()

    async def _failure(self, error: ShoalError) -> Exception:
        """Returns what an error of the stream means, and takes a service that is gone out of service."""
        if isinstance(error, InvalidArgument) or error.reason == ErrorReason.UNIMPLEMENTED:
            return error
        is_told_to_end = isinstance(error, Aborted) and error.reason == ErrorReason.SHUTTING_DOWN
        if is_told_to_end or isinstance(error, Unavailable | FailedPrecondition):
            await self._rewards.leave(self._member, error)
            # A service that ends while the episode asks nothing of it does not end for the episode.
            return self._lost(error.message, is_loss=error.reason not in _NOT_THE_EPISODES and not self._had_ended)
        if isinstance(error, ResourceExhausted) and error.retry_after_s is not None:  # Too many episodes are open.
            return EnvironmentLost(self._member.name, error.message, is_loss=False, retry_after_s=error.retry_after_s)
        return self._lost(error.message)

    def _lost(self, reason: str, *, is_loss: bool = True) -> EnvironmentLost:
        return EnvironmentLost(self._member.name, reason, is_loss=is_loss and not self._member.is_leaving)


def _result(message: environment_pb2.EpisodeResult) -> EpisodeResult:
    return EpisodeResult(
        outcome_from_wire(message.outcome, "result.outcome"),
        _finite(message.reward) if message.HasField("reward") else None,
        dict(message.metrics),
        message.detail,
        {call_id: _finite(reward) for call_id, reward in message.turn_rewards.items()},
        tuple(message.unread_call_ids),
    )


def _finite(reward: float) -> float:
    """Returns a reward. Raises `BrokenEpisode` for one that would make the advantages of its group NaN."""
    if not math.isfinite(reward):
        raise BrokenEpisode(f"the environment gave the reward {reward}; rewards must be finite numbers")
    return reward


def _stub(member: Member) -> "environment_pb2_grpc.EnvironmentServiceAsyncStub":
    return environment_pb2_grpc.EnvironmentServiceStub(member.channel)


def _info(message: environment_pb2.EnvironmentInfo) -> EnvironmentInfo:
    return EnvironmentInfo(
        message.name,
        tuple(map(tool_from_wire, message.tools)),
        message.is_deterministic,
        message.unavailable,
        message.is_agent,
    )


def _turn_to_wire(turn: PolicyTurn) -> environment_pb2.PolicyTurn:
    return environment_pb2.PolicyTurn(
        number=turn.number,
        message=chat_message_to_wire(turn.message),
        finish_reason=finish_reason_to_wire(turn.finish_reason),
        num_tokens=turn.num_tokens,
    )
