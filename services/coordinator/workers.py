"""The workers that are known: who they are, and whether their lease still runs."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from services.coordinator.tasks import Signal
from shoal.errors import NotFound
from shoal.v1 import worker_pb2
from shoal.wire import invalid

LEASE_S = 15.0
"""How long a worker counts as alive after a heartbeat. Workers send one every 3 s, so four may be lost."""

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/]+):[0-9]{1,5}")


@dataclass
class WorkerRecord:
    """One worker process, as it last described itself."""

    worker_id: str
    kind: worker_pb2.WorkerKind.ValueType
    address: str
    num_weight_ranks: int
    heartbeat_at: float
    """Monotonic clock."""
    status: worker_pb2.WorkerStatus = field(
        default_factory=lambda: worker_pb2.WorkerStatus(state=worker_pb2.WORKER_STATE_IDLE)
    )
    lost: bool = False
    loss_reason: str = ""


class WorkerRegistry:
    """Keeps leases, and tells listeners who came and who was lost. Pure but for its clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: dict[str, WorkerRecord] = {}
        self._changed = Signal()

    def register(
        self, worker_id: str, kind: worker_pb2.WorkerKind.ValueType, address: str, num_weight_ranks: int
    ) -> WorkerRecord:
        """Makes a worker known, or renews it. Another worker at the same address is thereby lost."""
        if not worker_id:
            raise invalid("worker_id", "is required")
        if kind == worker_pb2.WORKER_KIND_UNSPECIFIED:
            raise invalid("kind", "must be set")
        if not _ADDRESS.fullmatch(address):
            raise invalid("address", f"must be host:port (given: {address!r})")
        if num_weight_ranks < 0:
            raise invalid("num_weight_ranks", f"must be at least 0 (given: {num_weight_ranks})")
        for other in self._records.values():
            if other.address == address and other.worker_id != worker_id and not other.lost:
                self._lose(other, f"another process took its address {address}")
        known = self._records.get(worker_id)
        record = known or WorkerRecord(worker_id, kind, address, num_weight_ranks, self._clock())
        record.address, record.num_weight_ranks = address, num_weight_ranks
        record.heartbeat_at = self._clock()
        record.lost, record.loss_reason = False, ""
        self._records[worker_id] = record
        self._changed.notify()
        return record

    def heartbeat(self, worker_id: str, status: worker_pb2.WorkerStatus) -> None:
        """Renews a lease. Raises `NotFound` for a worker that has to register again."""
        record = self._records.get(worker_id)
        if record is None or record.lost:
            raise NotFound(f"worker {worker_id} is not known here; register again", reason="UNKNOWN_WORKER")
        record.heartbeat_at = self._clock()
        if record.status.state != status.state:
            self._changed.notify()
        record.status.CopyFrom(status)

    def report_lost(self, worker_id: str, reason: str) -> None:
        """Says that a call found the worker gone, without waiting for its lease to run out."""
        record = self._records.get(worker_id)
        if record is not None and not record.lost:
            self._lose(record, reason)

    def expire(self) -> None:
        """Loses the workers whose lease ran out."""
        for record in self._records.values():
            if not record.lost and self.heartbeat_age_s(record) > LEASE_S:
                self._lose(record, f"no heartbeat for {self.heartbeat_age_s(record):.0f} s")

    def heartbeat_age_s(self, record: WorkerRecord) -> float:
        return self._clock() - record.heartbeat_at

    def alive(self, kind: worker_pb2.WorkerKind.ValueType) -> list[WorkerRecord]:
        """Workers of a kind whose lease runs, in the order in which they registered."""
        return [record for record in self._records.values() if record.kind == kind and not record.lost]

    def all(self) -> list[WorkerRecord]:
        return sorted(self._records.values(), key=lambda record: (record.kind, record.worker_id))

    async def wait_for_change(self, timeout_s: float) -> None:
        """Returns when a worker came, went or changed its state, or after the time-out."""
        await self._changed.wait(timeout_s)

    async def expire_for_ever(self) -> None:
        """Looks after the leases; runs as long as the coordinator."""
        while True:
            await asyncio.sleep(1.0)
            self.expire()

    def _lose(self, record: WorkerRecord, reason: str) -> None:
        record.lost, record.loss_reason = True, reason
        self._changed.notify()
