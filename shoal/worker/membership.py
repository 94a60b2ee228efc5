"""A worker's place in the coordinator's registry."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.errors import InvalidArgument, NotFound, ShoalError
from shoal.rpc.channel import connect
from shoal.v1 import coordinator_pb2, worker_pb2
from shoal.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from shoal.worker.service import WorkerService

if TYPE_CHECKING:
    from shoal.v1.coordinator_pb2_grpc import CoordinatorServiceAsyncStub  # exists for the type checker only

_log = logging.getLogger(__name__)

HEARTBEAT_S = 3.0
"""Time between heartbeats; a lease lasts five of them."""
_POLL_S = 0.25
_CALL_TIMEOUT_S = 5.0


class Membership:
    """Registers a worker and keeps its lease, whatever becomes of the coordinator.

    The two may start in any order, and either may restart: an absent coordinator is looked for at every heartbeat,
    and one that does not know the worker gets it registered again. A change of state is told at once.
    """

    def __init__(
        self,
        service: WorkerService,
        *,
        worker_id: str,
        coordinator: str,
        find_address: Callable[[], str],
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_leaving`: whether this worker is not to be registered again, since another will be in its place."""
        self._service = service
        self._is_leaving = is_leaving
        self._worker_id = worker_id
        self._coordinator = coordinator
        self._find_address = find_address
        self._registered_ranks: int | None = None
        """Weight ranks that the coordinator knows of; None while it does not know the worker."""
        self._trouble = ""

    async def keep(self) -> None:
        """Runs until cancelled. Raises InvalidArgument when the coordinator refuses what the worker says of itself."""
        async with connect(self._coordinator, "shoal.v1.CoordinatorService") as channel:
            coordinator = CoordinatorServiceStub(channel)
            while not self._is_leaving():
                status = self._service.status()
                try:
                    # A generator learns from its configuration how many ranks it has.
                    if self._registered_ranks != self._service.num_weight_ranks:
                        await self._register(coordinator)
                    await self._beat(coordinator, status)
                except InvalidArgument:
                    raise
                except ShoalError as error:
                    self._report(error)
                await wait_for_other_state(self._service, status.state, at_most_s=HEARTBEAT_S)

    async def _register(self, coordinator: "CoordinatorServiceAsyncStub") -> None:
        # The name of a coordinator that is not up may not resolve, so the address is found anew each time.
        address = await asyncio.to_thread(self._find_address)
        num_weight_ranks = self._service.num_weight_ranks
        await coordinator.RegisterWorker(
            coordinator_pb2.RegisterWorkerRequest(
                worker_id=self._worker_id,
                kind=self._service.kind,
                address=address,
                num_weight_ranks=num_weight_ranks,
            ),
            timeout=_CALL_TIMEOUT_S,
        )
        self._registered_ranks = num_weight_ranks
        self._trouble = ""
        _log.info("registered", extra={"coordinator": self._coordinator, "address": address})

    async def _beat(self, coordinator: "CoordinatorServiceAsyncStub", status: worker_pb2.WorkerStatus) -> None:
        request = coordinator_pb2.HeartbeatRequest(worker_id=self._worker_id, status=status)
        try:
            await coordinator.Heartbeat(request, timeout=_CALL_TIMEOUT_S)
        except NotFound:
            self._registered_ranks = None
            if self._is_leaving():
                return
            await self._register(coordinator)
            await coordinator.Heartbeat(request, timeout=_CALL_TIMEOUT_S)
        self._trouble = ""

    def _report(self, error: ShoalError) -> None:
        """Says once what is wrong, not at every heartbeat."""
        if type(error).__name__ != self._trouble:
            self._trouble = type(error).__name__
            _log.warning("no word from the coordinator", extra={"error": error.message, "retry_every_s": HEARTBEAT_S})


async def wait_for_other_state(
    service: WorkerService, known: worker_pb2.WorkerState.ValueType, *, at_most_s: float
) -> worker_pb2.WorkerState.ValueType:
    """The service's state as soon as it is not the one that is known, or after a while."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + at_most_s
    while True:
        state = service.status().state
        if state != known or loop.time() >= give_up:
            return state
        await asyncio.sleep(_POLL_S)
