"""What a worker gives to the process that runs it."""

from collections.abc import Callable
from typing import Any, Protocol

import grpc

from shoal.v1 import worker_pb2


class WorkerService(Protocol):
    """A servicer, and what the registry has to know about it."""

    @property
    def kind(self) -> worker_pb2.WorkerKind.ValueType:
        """What it offers."""

    @property
    def full_name(self) -> str:
        """Its service, for example "shoal.v1.RewardService"."""

    @property
    def add_to_server(self) -> Callable[[Any, grpc.aio.Server], None]:
        """`add_<X>ServiceServicer_to_server` of the stubs."""

    @property
    def num_weight_ranks(self) -> int:
        """Ranks that it takes up in a broadcast group; 0 unless a generator."""

    def status(self) -> worker_pb2.WorkerStatus:
        """Its state and load. Called several times a second: cheap, and never blocks.

        The health of the service is SERVING while this says READY. A worker that cannot go on says FAILED and
        sends itself SIGTERM; the process then ends with exit code 1.
        """

    async def close(self) -> None:
        """Ends everything it has started, once no call is in flight."""
