"""The environments of a run at its reward services, and the streams of episodes to them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from services.coordinator.rollout.episodes.messages import (
    BrokenEpisode,
    EpisodeResult,
    EpisodeStart,
    Observation,
    PolicyAnswer,
    PolicyCall,
    PolicyRefusal,
    PolicyTurn,
    call_from_wire,
    observation_from_wire,
    reply_to_wire,
    result_from_wire,
    start_to_wire,
    turn_to_wire,
)
from services.coordinator.workers.lost_work import WorkFailed
from services.coordinator.workers.member import Member
from services.coordinator.workers.reward_pool import LIST_TIMEOUT_S, RewardPool
from shoal.conversation import ToolDefinition
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, FailedPrecondition, InvalidArgument, ResourceExhausted, ShoalError, Unavailable
from shoal.v1 import environment_pb2 as pb
from shoal.v1 import environment_pb2_grpc
from shoal.wire.conversations import tool_from_wire

GRACE_S = 30.0
"""Seconds that an answer may take in addition to the calls into the environment's process, such as for its start."""
_LAST_WORDS_S = 1.0
"""Seconds within which a stream may still report why it ends, after its service is lost."""
_NOT_THE_EPISODES = frozenset({ErrorReason.NOT_READY, ErrorReason.SHUTTING_DOWN})
"""Reasons for which a service ends any episode."""
STREAM_TIMEOUT_S = 7 * 86400.0
"""Timeout of an episode's stream. It is longer than any episode, since the episode has its own deadline."""


class EnvironmentLost(WorkFailed):
    """The stream of an episode ended without its result. The episode may be played again."""

    def __init__(self, worker: str, reason: str, *, is_loss: bool = True, retry_after_s: float | None = None) -> None:
        """If `retry_after_s` is set, too many episodes were open, and this episode may begin after that time."""
        super().__init__(worker, reason, is_loss=is_loss)
        self.retry_after_s = retry_after_s


class EpisodeStream:
    """An episode at its environment.

    The methods raise `EnvironmentLost` when the stream has ended, `BrokenEpisode` when the environment broke, and
    `InvalidArgument` for a task that the environment refuses.
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
        """Begins the episode. Returns the answer to the start, or to the last repeated turn."""
        request = pb.RunEpisodeRequest(start=start_to_wire(self._start, self._replay))
        return await self._observation(request, len(self._replay), num_calls=1 + len(self._replay))

    async def answer(self, turn: PolicyTurn) -> Observation:
        """Sends a turn. Returns the environment's answer."""
        request = pb.RunEpisodeRequest(turn=turn_to_wire(turn))
        return await self._observation(request, turn.number, num_calls=1)

    async def next_call(self) -> PolicyCall | EpisodeResult:
        """Waits for a call of an agent, or the result. The only time limit is that of the episode."""
        response = await self._read(None)
        if response.HasField("result"):
            return result_from_wire(response.result)
        if not response.HasField("call"):
            raise self._lost(f"it sent {response.WhichOneof('part')} instead of a call or the result")
        try:
            return call_from_wire(response.call)
        except InvalidArgument as error:
            raise self._lost(f"it sent a call that cannot be read: {error.message}") from None

    async def reply(self, call_id: str, reply: PolicyAnswer | PolicyRefusal) -> None:
        """Answers a call of an agent, or refuses it."""
        await self._write(pb.RunEpisodeRequest(reply=reply_to_wire(call_id, reply)))

    async def end(self, stop_reason: str) -> EpisodeResult:
        """Ends the episode from this side. Returns its result."""
        await self._write(pb.RunEpisodeRequest(end=pb.EpisodeEnd(stop_reason=stop_reason)))
        return await self.result()

    async def result(self) -> EpisodeResult:
        """Returns the result of an episode that is done."""
        response = await self._read(num_calls=1)
        if not response.HasField("result"):
            raise self._lost(f"it sent {response.WhichOneof('part')} instead of the result")
        return result_from_wire(response.result)

    async def _observation(self, request: pb.RunEpisodeRequest, number: int, *, num_calls: int) -> Observation:
        await self._write(request)
        response = await self._read(num_calls)
        if response.HasField("result"):  # It broke: the result says how.
            raise BrokenEpisode(result_from_wire(response.result).detail)
        observation = response.observation
        if not response.HasField("observation") or observation.turn != number:
            raise self._lost(f"it answered turn {observation.turn} instead of turn {number}")
        return observation_from_wire(observation)

    async def _write(self, request: pb.RunEpisodeRequest) -> None:
        # A stream that has ended says why when it is read.
        self._had_ended = self._call.done() or self._member.lost.is_set()
        with contextlib.suppress(ShoalError, asyncio.InvalidStateError):
            async with self._writing:
                await self._unless_lost(self._call.write(request), None)

    async def _read(self, num_calls: int | None) -> pb.RunEpisodeResponse:
        start = self._start
        limit_s = None if num_calls is None else num_calls * start.call_timeout_s * start.num_sharing + GRACE_S
        try:
            response = await self._unless_lost(self._call.read(), limit_s)
        except ShoalError as error:
            raise await self._failure(error) from error
        if response is grpc.aio.EOF:
            raise self._lost("it ended the episode without a result")
        assert isinstance(response, pb.RunEpisodeResponse)
        return response

    async def _unless_lost(self, part: Coroutine[Any, Any, Any], limit_s: float | None) -> Any:
        """Returns the result of a part of the call. Raises `EnvironmentLost` at the limit, and once the service is
        lost, because the connection to a lost machine stays silent."""
        work, lost = asyncio.ensure_future(part), asyncio.ensure_future(self._member.lost.wait())
        work.add_done_callback(_retrieve)
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
        """Returns the meaning of an error of the stream. Marks a service that has ended as lost."""
        if isinstance(error, InvalidArgument) or error.reason == ErrorReason.UNIMPLEMENTED:
            return error
        is_told_to_end = isinstance(error, Aborted) and error.reason == ErrorReason.SHUTTING_DOWN
        if is_told_to_end or isinstance(error, Unavailable | FailedPrecondition):
            await self._rewards.leave(self._member, error)
            # A service that ends while the episode asks nothing of it does not end because of the episode.
            return self._lost(error.message, is_loss=error.reason not in _NOT_THE_EPISODES and not self._had_ended)
        if isinstance(error, ResourceExhausted) and error.retry_after_s is not None:  # Too many episodes are open.
            return EnvironmentLost(self._member.name, error.message, is_loss=False, retry_after_s=error.retry_after_s)
        return self._lost(error.message)

    def _lost(self, reason: str, *, is_loss: bool = True) -> EnvironmentLost:
        return EnvironmentLost(self._member.name, reason, is_loss=is_loss and not self._member.is_leaving)


def _retrieve(work: "asyncio.Future[Any]") -> None:
    """Retrieves an error for which no task waits anymore, since asyncio would report the error."""
    if not work.cancelled():
        work.exception()


@dataclass(frozen=True)
class EnvironmentInfo:
    """An environment that a reward service offers."""

    name: str
    tools: tuple[ToolDefinition, ...]
    is_deterministic: bool
    unavailable: str
    """The reason why the environment cannot work at the service; empty if it can."""
    is_agent: bool = False
    """Whether it calls the policy itself."""


class EnvironmentPool:
    """The environments of a run. Each episode goes to the reward service with the least work."""

    def __init__(self, rewards: RewardPool) -> None:
        self._rewards = rewards

    async def list(self) -> dict[str, EnvironmentInfo]:
        """Returns the environments, by name. Raises `FailedPrecondition` when no service offers any."""
        request = pb.ListEnvironmentsRequest()
        _, response = await self._rewards.ask(
            lambda member: _stub(member).ListEnvironments(request, timeout=LIST_TIMEOUT_S)
        )
        return {info.name: _info(info) for info in response.environments}

    @contextlib.asynccontextmanager
    async def play(self, start: EpisodeStart, replay: Sequence[PolicyTurn]) -> AsyncIterator[EpisodeStream]:
        """Opens the stream of an episode, which ends with the block. `replay` has the turns that were played before.

        Raises `FailedPrecondition` if no service is connected within coordinator.worker_timeout_s.
        """
        member = await self._rewards.choose()
        member.outstanding += 1
        call = _stub(member).RunEpisode(timeout=STREAM_TIMEOUT_S)
        try:
            yield EpisodeStream(call, member, self._rewards, start, replay)
        finally:
            call.cancel()
            member.outstanding -= 1


def _stub(member: Member) -> "environment_pb2_grpc.EnvironmentServiceAsyncStub":
    return environment_pb2_grpc.EnvironmentServiceStub(member.channel)


def _info(message: pb.EnvironmentInfo) -> EnvironmentInfo:
    return EnvironmentInfo(
        message.name,
        tuple(map(tool_from_wire, message.tools)),
        message.is_deterministic,
        message.unavailable,
        message.is_agent,
    )
