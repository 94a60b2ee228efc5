"""The environments of a run at its reward services, with their offers and the streams of episodes."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from services.coordinator.rollout.episodes.messages import EpisodeStart, PolicyTurn
from services.coordinator.rollout.episodes.stream import EpisodeStream
from services.coordinator.workers.member import Member
from services.coordinator.workers.rewards.reward_pool import LIST_TIMEOUT_S, RewardPool
from shoal.conversation import ToolDefinition
from shoal.v1 import environment_pb2 as pb
from shoal.v1 import environment_pb2_grpc
from shoal.wire.conversations import tool_from_wire

STREAM_TIMEOUT_S = 7 * 86400.0
"""The episode has a deadline of its own."""


@dataclass(frozen=True)
class EnvironmentInfo:
    """The offer of an environment."""

    name: str
    tools: tuple[ToolDefinition, ...]
    is_deterministic: bool
    unavailable: str
    """The reason why it cannot work at the service; empty if it can."""
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
