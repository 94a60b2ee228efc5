"""Membership of a worker in the coordinator's registry: registration and heartbeats."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from shoal.errors import DeadlineExceeded, InvalidArgument, NotFound, PermissionDenied, ShoalError, Unavailable
from shoal.rpc.auth import credentials
from shoal.rpc.auth.unreachable import tls_failure, why_unreachable
from shoal.rpc.channel import connect
from shoal.v1 import coordinator_pb2, worker_pb2
from shoal.v1.coordinator_pb2_grpc import CoordinatorServiceStub

if TYPE_CHECKING:
    from shoal.v1.coordinator_pb2_grpc import CoordinatorServiceAsyncStub  # exists for the type checker only

_log = logging.getLogger(__name__)

HEARTBEAT_S = 3.0
"""Seconds between heartbeats. A lease lasts as long as five such intervals."""
LEAVING_HEARTBEAT_S = 1.0
"""Seconds between the heartbeats of a LEAVING worker, which ends as soon as the coordinator releases the worker."""
_NUM_GONE = 3
"""Failed heartbeats in a row after which a LEAVING worker considers its coordinator gone."""
_POLL_S = 0.25
_CALL_TIMEOUT_S = 5.0
_LAST_TIMEOUT_S = 1.0
"""Timeout of the last heartbeat, which must not delay the end of the process."""


class Service(Protocol):
    """A servicer, with the facts that a server needs."""

    @property
    def full_name(self) -> str:
        """Full name of the service, for example "shoal.v1.RewardService"."""

    @property
    def add_to_server(self) -> Callable[[Any, grpc.aio.Server], None]:
        """The function `add_<X>ServiceServicer_to_server` of the stubs."""


class WorkerService(Service, Protocol):
    """A servicer, with the facts that the registry needs."""

    @property
    def kind(self) -> worker_pb2.WorkerKind.ValueType:
        """The kind of worker."""

    @property
    def num_weight_ranks(self) -> int:
        """The number of the worker's ranks in a broadcast group; 0 for workers other than generators."""

    def status(self) -> worker_pb2.WorkerStatus:
        """Returns state and load. Called several times a second, so the method must be cheap and must not block.

        The health of the service is SERVING while the state is READY. A worker that cannot continue sets the state
        FAILED and sends itself SIGTERM; the process then ends with exit code 1.
        """

    async def close(self) -> None:
        """Ends all work that the service started. Called when no call is in flight."""


class Membership:
    """Registers a worker with the coordinator and keeps its lease.

    Worker and coordinator may start in any order, and either may restart. Each heartbeat tries again if the coordinator
    does not answer, and registers again if the coordinator does not know the worker. A change of state is reported at
    once, and a FAILED worker reports its state in its last heartbeat. A LEAVING worker does not register again, since a
    coordinator that no longer knows the worker, or that is gone, does not need the worker.
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
        """`is_leaving` returns whether the worker must not register again, because another worker replaces it."""
        self._service = service
        self._is_leaving = is_leaving
        self._worker_id = worker_id
        # With this secret, knowing the worker's name and having its certificate is not enough to renew its lease.
        self._lease_secret = secrets.token_bytes(32)
        self._coordinator = coordinator
        self._find_address = find_address
        self._registered_ranks: int | None = None
        """Number of weight ranks in the last registration; None while the coordinator does not know the worker."""
        self._reported: set[tuple[str, str]] = set()
        """The kinds of errors since the last successful heartbeat."""

    async def keep(self) -> None:
        """Runs until canceled. For a LEAVING worker, ends when no coordinator needs the worker.

        Raises InvalidArgument when the coordinator refuses the registration.
        """
        async with connect(self._coordinator, "shoal.v1.CoordinatorService") as channel:
            coordinator = CoordinatorServiceStub(channel)
            try:
                await self._keep(coordinator)
            finally:
                await self._report_failure(coordinator)

    async def _keep(self, coordinator: "CoordinatorServiceAsyncStub") -> None:
        num_failed = 0
        while not self._is_leaving():
            status = self._service.status()
            leaves = status.state == worker_pb2.WORKER_STATE_LEAVING
            try:
                # The number of a generator's ranks follows from its configuration.
                if self._registered_ranks != self._service.num_weight_ranks:
                    if leaves:
                        return
                    await self._register(coordinator)
                await self._beat(coordinator, status)
                num_failed = 0
            except InvalidArgument:
                raise
            except ShoalError as error:
                num_failed += 1
                if leaves and num_failed == _NUM_GONE:
                    return
                await self._report(error)
            await wait_for_other_state(
                self._service, status.state, at_most_s=LEAVING_HEARTBEAT_S if leaves else HEARTBEAT_S
            )

    async def _report_failure(self, coordinator: "CoordinatorServiceAsyncStub") -> None:
        """Reports that the worker ends because it has FAILED, so that nobody waits until its lease expires."""
        status = self._service.status()
        if status.state == worker_pb2.WORKER_STATE_FAILED:
            with contextlib.suppress(ShoalError):
                await coordinator.Heartbeat(self._heartbeat(status), timeout=_LAST_TIMEOUT_S)

    async def _register(self, coordinator: "CoordinatorServiceAsyncStub") -> None:
        # Determine the address at each registration: the name of a coordinator that is down may not resolve.
        address = await asyncio.to_thread(self._find_address)
        num_weight_ranks = self._service.num_weight_ranks
        await coordinator.RegisterWorker(
            coordinator_pb2.RegisterWorkerRequest(
                worker_id=self._worker_id,
                kind=self._service.kind,
                address=address,
                num_weight_ranks=num_weight_ranks,
                lease_secret=self._lease_secret,
            ),
            timeout=_CALL_TIMEOUT_S,
        )
        self._registered_ranks = num_weight_ranks
        self._reported.clear()
        _log.info("registered", extra={"coordinator": self._coordinator, "address": address})

    async def _beat(self, coordinator: "CoordinatorServiceAsyncStub", status: worker_pb2.WorkerStatus) -> None:
        request = self._heartbeat(status)
        try:
            await coordinator.Heartbeat(request, timeout=_CALL_TIMEOUT_S)
        except NotFound:
            self._registered_ranks = None
            if self._is_leaving() or status.state == worker_pb2.WORKER_STATE_LEAVING:
                return
            await self._register(coordinator)
            await coordinator.Heartbeat(request, timeout=_CALL_TIMEOUT_S)
        except PermissionDenied:
            # Another caller has the lease, or this worker's certificate has a new name.
            self._registered_ranks = None
            raise
        self._reported.clear()

    def _heartbeat(self, status: worker_pb2.WorkerStatus) -> coordinator_pb2.HeartbeatRequest:
        return coordinator_pb2.HeartbeatRequest(
            worker_id=self._worker_id, status=status, lease_secret=self._lease_secret
        )

    async def _report(self, error: ShoalError) -> None:
        """Logs each kind of error once, not at every heartbeat: several addresses of a name may fail in turn."""
        failure = (type(error).__name__, tls_failure(error.message))
        if failure not in self._reported:
            self._reported.add(failure)
            message, what = error.message, "refuses this worker"
            if isinstance(error, Unavailable | DeadlineExceeded):
                what = "does not answer"
            if isinstance(error, Unavailable):
                uses_tls = credentials.current().tls is not None
                message = await asyncio.to_thread(why_unreachable, self._coordinator, message, uses_tls=uses_tls)
            _log.warning(f"coordinator {what}", extra={"error": message, "retry_every_s": HEARTBEAT_S})


async def wait_for_other_state(
    service: WorkerService, known: worker_pb2.WorkerState.ValueType, *, at_most_s: float
) -> worker_pb2.WorkerState.ValueType:
    """Returns the service's state as soon as the state differs from `known`, at the latest after `at_most_s`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + at_most_s
    while True:
        state = service.status().state
        if state != known or loop.time() >= deadline:
            return state
        await asyncio.sleep(_POLL_S)
