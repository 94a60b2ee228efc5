"""A client of EnvironmentService, and a reward service in the test's process that plays environments."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from services.reward.allowed import Allowed
from services.reward.environments.environment_service import EnvironmentService
from services.reward.environments.environments import Environments
from services.reward.service import RewardService
from shoal.config.load import config_struct
from shoal.config.tables.environments import EnvironmentConfig
from shoal.conversation import ChatMessage
from shoal.rpc.channel import connect
from shoal.rpc.server import RpcServer
from shoal.v1 import environment_pb2, reward_pb2, rollout_pb2, worker_pb2
from shoal.v1.environment_pb2_grpc import EnvironmentServiceStub
from shoal.v1.reward_pb2_grpc import RewardServiceStub
from shoal.wire.conversations import chat_message_to_wire, struct_to_wire
from shoal.worker.lifecycle import Lifecycle
from shoal.worker.membership import Service
from tests.support.configs import run_config
from tests.support.loopback import started
from tests.support.reward_client import ALLOWED, TIMEOUT_S
from tests.support.waiting import eventually

Observation = environment_pb2.Observation
Result = environment_pb2.EpisodeResult


def start(environment: str, task: dict[str, Any] | None = None, **fields: Any) -> environment_pb2.EpisodeStart:
    return environment_pb2.EpisodeStart(
        **{"episode_id": "e", "call_timeout_s": 30.0} | fields,
        environment=environment,
        task=struct_to_wire(task or {}),
    )


def turn(number: int, text: str | ChatMessage = "") -> environment_pb2.PolicyTurn:
    message = text if isinstance(text, ChatMessage) else ChatMessage("assistant", text)
    return environment_pb2.PolicyTurn(
        number=number, message=chat_message_to_wire(message), finish_reason=rollout_pb2.FINISH_REASON_STOP
    )


class Player:
    def __init__(self, stub: EnvironmentServiceStub, first: environment_pb2.EpisodeStart) -> None:
        self._requests: asyncio.Queue[environment_pb2.RunEpisodeRequest | None] = asyncio.Queue()
        self._requests.put_nowait(environment_pb2.RunEpisodeRequest(start=first))
        self.call = stub.RunEpisode(self._stream(), timeout=TIMEOUT_S)
        self._responses = aiter(self.call)
        self._number = len(first.replay)

    async def _stream(self) -> AsyncIterator[environment_pb2.RunEpisodeRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def observe(self) -> Observation:
        response = await anext(self._responses)
        assert response.WhichOneof("part") == "observation", response
        return response.observation

    async def say(self, text: str | ChatMessage) -> Observation:
        self.send(text)
        return await self.observe()

    def send(self, text: str | ChatMessage) -> None:
        self._number += 1
        self._requests.put_nowait(environment_pb2.RunEpisodeRequest(turn=turn(self._number, text)))

    def end(self, stop_reason: str = "max_turns") -> None:
        self._requests.put_nowait(
            environment_pb2.RunEpisodeRequest(end=environment_pb2.EpisodeEnd(stop_reason=stop_reason))
        )

    async def finish(self) -> Result:
        self.end()
        return await self.result()

    async def result(self) -> Result:
        response = await anext(self._responses)
        assert response.WhichOneof("part") == "result", response
        self._requests.put_nowait(None)
        assert await anext(self._responses, None) is None, "something followed the result"
        return response.result


class Stage:
    """A server that plays environments, in this process, and a client of it."""

    def __init__(self, service: EnvironmentService, channel: grpc.aio.Channel, address: str) -> None:
        self.service, self.address = service, address
        self.stub = EnvironmentServiceStub(channel)

    async def configure(self, *environments: dict[str, Any]) -> None:
        """Takes these environments. Raises what the service shows as the reason of its failure."""
        tables = [EnvironmentConfig.model_validate(table) for table in environments]
        await self.service.use(Environments(tables))

    def play(self, environment: str, task: dict[str, Any] | None = None, **fields: Any) -> Player:
        return Player(self.stub, start(environment, task, **fields))

    async def begin(self, environment: str, task: dict[str, Any] | None = None, **fields: Any) -> Player:
        player = self.play(environment, task, **fields)
        await player.observe()
        return player

    async def listed(self) -> dict[str, environment_pb2.EnvironmentInfo]:
        response = await self.stub.ListEnvironments(environment_pb2.ListEnvironmentsRequest(), timeout=TIMEOUT_S)
        return {info.name: info for info in response.environments}


class RewardStage(Stage):
    """The same as a part of a whole reward service, which takes its time to start verifiers."""

    def __init__(self, reward: RewardService, channels: Sequence[grpc.aio.Channel], address: str) -> None:
        super().__init__(reward.environments, channels[1], address)
        self.reward, self.reward_stub = reward, RewardServiceStub(channels[0])

    async def configure(self, *environments: dict[str, Any]) -> None:
        """Configures the service, and waits until it has loaded, or failed."""
        struct = config_struct(run_config(environments=list(environments), reward={"num_processes": 1}))
        request = reward_pb2.RewardServiceConfigureRequest(run_id="run-1", config=struct)
        await self.reward_stub.Configure(request, timeout=TIMEOUT_S)

        async def has_loaded() -> bool:
            return self.reward.status().state in (worker_pb2.WORKER_STATE_READY, worker_pb2.WORKER_STATE_FAILED)

        await eventually(has_loaded)


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """Serves environments alone, as a service that is READY does, and closes them in the end."""
    lifecycle = Lifecycle("the reward service")
    service = EnvironmentService(lifecycle)
    async with _served(service) as address:
        ready = asyncio.Event()

        async def load() -> None:
            ready.set()

        lifecycle.load("run-1", run_config(), load, message="loading")
        await ready.wait()
        async with connect(address, service.full_name) as channel:
            yield Stage(service, channel, address)
    await service.close()


@asynccontextmanager
async def staged_with_rewards(allowed: Allowed = ALLOWED) -> AsyncIterator[RewardStage]:
    """Serves a reward service, which is closed in the end."""
    reward = RewardService(allowed)
    async with (
        _served(reward, reward.environments) as address,
        connect(address, reward.full_name) as first,
        connect(address, reward.environments.full_name) as second,
    ):
        yield RewardStage(reward, (first, second), address)
    await reward.close()


@asynccontextmanager
async def _served(*services: Service) -> AsyncIterator[str]:
    server = RpcServer(listen="127.0.0.1:0")
    for service in services:
        server.add(service.add_to_server, service, service.full_name)
    async with started(server) as address:
        yield address
