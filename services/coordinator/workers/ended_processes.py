"""Finds out whether the process of a worker still exists, before the worker's lease expires.

When a process ends, its connections break, and its port refuses new ones at once. A failed network breaks connections
too, but refuses none. Then the lease decides: a worker that is back before its lease expires has lost nothing. A valid
lease goes to another registration only once the process that holds it is gone.
"""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.coordinator.workers.member import POLL_S as STATUS_POLL_S
from services.coordinator.workers.member import SERVICES, Member, status_of
from services.coordinator.workers.registry import Holder, WorkerRecord, WorkerRegistry
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, NotFound, ShoalError, Unavailable
from shoal.rpc.channel import connect

POLL_S = 0.5
MAX_REFUSALS = 3
"""Refused connections in a row that show the end of a process; one may come from a firewall that is reconfigured."""
CONNECT_TIMEOUT_S = 2.0
ENDING_S = 3.0
"""Maximum time from the state FAILED until a worker whose process ends refuses calls."""
CALL_TIMEOUT_S = 2.0
"""Timeout of a call to a holder of a lease: below the 5 s in which a worker expects an answer to its registration."""


async def until_gone(member: Member) -> None:
    """Waits until nothing listens at the address of a worker anymore, which shows that its process has ended."""
    num_refusals = 0
    while num_refusals < MAX_REFUSALS:
        await asyncio.sleep(POLL_S)
        if member.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            num_refusals = 0
        else:
            num_refusals = num_refusals + 1 if await _refuses(member.record.address) else 0


async def is_ending(member: Member) -> bool:
    """Whether a FAILED worker ends its process, to be started again. A worker that only cannot load keeps running."""
    for _ in range(round(ENDING_S / STATUS_POLL_S)):
        await asyncio.sleep(STATUS_POLL_S)
        try:
            await status_of(member)
        except Unavailable:
            return True
        except ShoalError:
            continue
    return False


async def _refuses(address: str) -> bool:
    """Returns whether the machine at an address answers that nothing listens there."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False


async def check_displaced(registry: WorkerRegistry, worker_id: str, address: str, registering: Holder) -> None:
    """Checks that no live worker would lose its lease to a registration with the same address or name.

    Calls each worker that holds such a lease. If another registration takes the lease during a call, calls the new
    holder too. So register right after the return, without an await in between. A worker may renew its own lease.

    Raises `FailedPrecondition` (LEASE_HELD) if a holder is alive, or if a call does not show that it is gone.
    """
    gone: set[tuple[str, str, Holder]] = set()
    while holders := [
        record for record in registry.displaced_by(worker_id, address, registering) if _lease_of(record) not in gone
    ]:
        holder, lease = holders[0], _lease_of(holders[0])
        if await _is_gone(holder):
            gone.add(lease)
        else:
            raise FailedPrecondition(
                f"{holder.worker_id} at {holder.address} has a valid lease, and its process has not ended: stop that "
                "worker first, or give the new worker another address",
                reason=ErrorReason.LEASE_HELD,
                metadata={"worker_id": holder.worker_id, "address": holder.address},
            )


def _lease_of(record: WorkerRecord) -> tuple[str, str, Holder]:
    return record.worker_id, record.address, record.holder


async def _is_gone(holder: WorkerRecord) -> bool:
    """Returns whether nothing listens at the address of a worker, or another process than that worker."""
    service, *_ = SERVICES[holder.kind]
    async with connect(holder.address, service) as channel:
        try:
            # The health service of a worker's process knows the worker by its name (shoal/worker/process.py).
            request = health_pb2.HealthCheckRequest(service=holder.worker_id)
            await health_pb2_grpc.HealthStub(channel).Check(request, timeout=CALL_TIMEOUT_S)
        except (NotFound, Unavailable):
            return True
        except ShoalError:
            return False  # It hangs, or cannot be reached: its lease decides.
    return False
