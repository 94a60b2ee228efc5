"""The interface between a worker and the process that runs it."""

from collections.abc import Callable
from typing import Any, Protocol

import grpc

from shoal.v1 import worker_pb2


class Service(Protocol):
    """A servicer, with the facts that a server needs."""

    @property
    def full_name(self) -> str:
        """Full name of the service, for example "shoal.v1.RewardService"."""

    @property
    def add_to_server(self) -> Callable[[Any, grpc.aio.Server], None]:
        """`add_<X>ServiceServicer_to_server` of the stubs."""


class WorkerService(Service, Protocol):
    """A servicer, with the facts that the registry needs."""

    @property
    def kind(self) -> worker_pb2.WorkerKind.ValueType:
        """The kind of worker."""

    @property
    def num_weight_ranks(self) -> int:
        """Number of the worker's ranks in a broadcast group; 0 unless it is a generator."""

    def status(self) -> worker_pb2.WorkerStatus:
        """Returns state and load. Called several times a second, so it must be cheap and must not block.

        The health of the service is SERVING while the state is READY. A worker that cannot continue sets the state
        FAILED and sends itself SIGTERM; the process then ends with exit code 1.
        """

    async def close(self) -> None:
        """Ends everything that the service started. Called when no call is in flight."""
