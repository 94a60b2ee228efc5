"""EnvironmentService over gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import grpc

from services.reward.common.departure import leaving
from services.reward.environments.environments import Environments
from shoal.telemetry import metrics, names
from shoal.v1 import environment_pb2, worker_pb2
from shoal.v1.environment_pb2_grpc import EnvironmentServiceServicer, add_EnvironmentServiceServicer_to_server
from shoal.wire import invalid
from shoal.wire.scores import outcome_from_wire
from shoal.worker.lifecycle import Lifecycle

_EPISODES = metrics.counter(names.ENVIRONMENT_EPISODES)


class EnvironmentService(EnvironmentServiceServicer):
    """Plays episodes in the environments of the reward service's configuration. Belongs to one event loop."""

    full_name = "shoal.v1.EnvironmentService"

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self.add_to_server: Callable[[Any, grpc.aio.Server], None] = add_EnvironmentServiceServicer_to_server
        self._environments = Environments([])
        self._playing_tasks: set[asyncio.Task[None]] = set()
        self._has_given_up = False
        self._nothing_open = asyncio.Event()
        self._nothing_open.set()

    @property
    def pids(self) -> Sequence[int]:
        """The ids of the processes of all environments."""
        return self._environments.pids

    @property
    def num_open(self) -> int:
        """Number of episodes whose streams are open."""
        return len(self._playing_tasks)

    @property
    def notice(self) -> str:
        """A warning for people, for example that new code cannot be used; empty if all is well."""
        return self._environments.notice

    async def use(self, environments: Environments, *, lists_unusable: bool = False) -> None:
        """Takes new environments when no episode is open. Raises a `ShoalError` that names unusable environments,
        unless `lists_unusable`."""
        await self.wait_until_none_is_open()
        await self._environments.close()
        self._environments = environments
        await environments.find(lists_unusable=lists_unusable)
        environments.watch()

    async def reload(self, *, keeps_tools: bool) -> None:
        """Reads the code of all environments again, for later episodes. Raises the errors of `find`."""
        await self._environments.find(keeps_tools=keeps_tools)

    async def wait_until_none_is_open(self) -> None:
        await self._nothing_open.wait()

    def give_up(self) -> None:
        """Ends all open episodes with ABORTED, since the process ends now."""
        self._has_given_up = True
        for task in self._playing_tasks:
            task.cancel()

    async def close(self) -> None:
        """Ends all processes."""
        await self._environments.close()

    async def ListEnvironments(
        self, request: environment_pb2.ListEnvironmentsRequest, context: Any
    ) -> environment_pb2.ListEnvironmentsResponse:
        self._check_ready()
        return environment_pb2.ListEnvironmentsResponse(environments=self._environments.describe())

    async def RunEpisode(
        self, request_iterator: AsyncIterator[environment_pb2.RunEpisodeRequest], context: Any
    ) -> AsyncIterator[environment_pb2.RunEpisodeResponse]:
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "start":
            raise invalid("start", "the first message of the stream must hold the start")
        self._check_ready()
        task, outcome = asyncio.current_task(), "aborted"
        assert task is not None
        self._playing_tasks.add(task)
        self._nothing_open.clear()
        try:
            async with aclosing(self._environments.play(first.start, requests)) as responses:
                async for response in responses:
                    if response.WhichOneof("part") == "result":
                        outcome = outcome_from_wire(response.result.outcome, "result.outcome").value
                    yield response
        except asyncio.CancelledError:
            if self._has_given_up:
                raise leaving() from None
            raise
        finally:
            _EPISODES.add(1, {names.ENVIRONMENT: first.start.environment, names.OUTCOME: outcome})
            self._playing_tasks.discard(task)
            if not self._playing_tasks:
                self._nothing_open.set()

    def _check_ready(self) -> None:
        match self._lifecycle.state:
            case worker_pb2.WORKER_STATE_READY:
                return
            case worker_pb2.WORKER_STATE_LEAVING:
                raise leaving()
        raise self._lifecycle.not_ready()
