"""An environment of another server that offers `shoal.v1.EnvironmentService`."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc.aio

from services.reward.environments.agents import Requests
from services.reward.environments.inside.answers import MAX_MESSAGES, MAX_NAME_CHARS, BadAnswer, check_number, cut
from services.reward.environments.local import Responses, lost_tool
from services.reward.environments.wire import failure_to_wire
from shoal.config.tables.environments import EnvironmentConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    ShoalError,
    Unavailable,
)
from shoal.rpc.auth import credentials as auth
from shoal.rpc.channel import connect
from shoal.scores import ScoreOutcome
from shoal.v1 import environment_pb2
from shoal.v1.environment_pb2_grpc import EnvironmentServiceStub

SERVICE = "shoal.v1.EnvironmentService"
_LIST_TIMEOUT_S = 10.0
_PAUSE_S = 0.2
_EPISODE_TIMEOUT_S = 86_400.0
"""Time limit of an episode's call. The caller ends an episode long before."""


class RemoteEnvironment:
    """Forwards episodes to a server. Belongs to one event loop."""

    def __init__(self, config: EnvironmentConfig, *, gets_token: bool, patience_s: float) -> None:
        """With `gets_token` the server gets this process's token, if there is one. `patience_s` is the longest wait for
        the server's first answer, since servers start in any order."""
        self.config = config
        self.info = environment_pb2.EnvironmentInfo(name=config.name)
        self.pids: list[int] = []
        self.notice = ""
        self._field, self._patience_s = f"environments.{config.name}.server", patience_s
        credentials = auth.current() if gets_token else replace(auth.current(), token=None)
        self._channel: grpc.aio.Channel = connect(config.server, SERVICE, credentials)
        self._stub = EnvironmentServiceStub(self._channel)

    async def find(self, *, keeps_tools: bool = False) -> None:
        """Asks the server for its environments. Raises `FailedPrecondition` if it does not answer, and
        `InvalidArgument` if it lacks the environment; with `keeps_tools`, also if the environment has lost a tool."""
        give_up, request = time.monotonic() + self._patience_s, environment_pb2.ListEnvironmentsRequest()
        while True:
            try:
                listed = await self._stub.ListEnvironments(request, timeout=_LIST_TIMEOUT_S)
                break
            except ShoalError as error:
                if not isinstance(error, Unavailable) or time.monotonic() >= give_up:
                    raise FailedPrecondition(
                        f"{self._field}: {self.config.server} does not list its environments: {error.message}",
                        reason=ErrorReason.NO_REWARD_SERVER,
                    ) from None
                await asyncio.sleep(_PAUSE_S)
        found = {info.name: info for info in listed.environments}
        if self.config.name not in found:
            raise InvalidArgument(
                f"{self._field}: {self.config.server} has no environment {self.config.name!r}; it has: "
                f"{', '.join(sorted(found)) or 'none'}"
            )
        info = found[self.config.name]
        if keeps_tools and (why := lost_tool(self.info, info)):
            raise InvalidArgument(f"{self._field}: {why}")
        self.info = info

    def watch(self) -> None:
        """Does nothing, since the server decides about its code."""

    async def close(self) -> None:
        await self._channel.close()

    async def play(self, first: environment_pb2.EpisodeStart, requests: Requests) -> Responses:
        """Plays one episode at the server. An error inside the server gives the outcome FAILED."""

        async def forwarded() -> AsyncIterator[environment_pb2.RunEpisodeRequest]:
            yield environment_pb2.RunEpisodeRequest(start=first)
            async for request in requests:
                yield request

        call = self._stub.RunEpisode(forwarded(), timeout=_EPISODE_TIMEOUT_S)
        try:
            async for response in call:
                yield self._within_bounds(response)
        except (InvalidArgument, ResourceExhausted, Aborted):
            raise
        except Unavailable as error:
            # UNAVAILABLE would mean that this service is away.
            raise Aborted(f"{self._field}: {error.message}; begin the episode again") from None
        except ShoalError as error:
            yield failure_to_wire(ScoreOutcome.FAILED, f"{self._field}: {error.message}"[:500])
        except BadAnswer as error:
            yield failure_to_wire(ScoreOutcome.FAILED, f"{self._field}: {error}")
        finally:
            call.cancel()

    def _within_bounds(self, response: environment_pb2.RunEpisodeResponse) -> environment_pb2.RunEpisodeResponse:
        """Cuts the server's texts to the limit of any environment. Raises `BadAnswer` for too many messages."""
        if not response.HasField("observation"):
            return response
        messages, outcomes = response.observation.messages, response.observation.tool_outcomes
        check_number(len(messages))
        texts = cut([message.content for message in messages], self.config.max_observation_chars)
        for message, text in zip(messages, texts, strict=True):
            message.content = text
            message.role, message.name = message.role[:MAX_NAME_CHARS], message.name[:MAX_NAME_CHARS]
            message.tool_call_id = message.tool_call_id[:MAX_NAME_CHARS]
        del outcomes[MAX_MESSAGES:]
        for outcome in outcomes:
            outcome.name = outcome.name[:MAX_NAME_CHARS]
        return response
