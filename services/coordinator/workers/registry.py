"""The registry of workers: their descriptions and leases."""

import asyncio
import hmac
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from services.coordinator.workers.utilization import Samples
from shoal.concurrency import Signal
from shoal.error_reasons import ErrorReason
from shoal.errors import NotFound, PermissionDenied, ResourceExhausted
from shoal.rpc.auth.permissions import Caller
from shoal.v1 import worker_pb2
from shoal.wire import invalid

LEASE_S = 15.0
"""Time that a worker counts as alive after a heartbeat. Workers send one every 3 s, so four may be lost."""
LOST_SHOWN_S = 300.0
"""Time after its last heartbeat for which a lost worker is listed."""
_EXPIRE_EVERY_S = 1.0

MAX_WORKERS = 1000
MAX_ID_CHARS = 200
MAX_MESSAGE_CHARS = 2000
"""Limits for the number of workers, and for the lengths of the texts that they send."""

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/]+):[0-9]{1,5}")
_KINDS = set(worker_pb2.WorkerKind.values()) - {worker_pb2.WORKER_KIND_UNSPECIFIED}


@dataclass(frozen=True)
class Holder:
    """The holder of a lease. Nobody else can renew the lease, or change what it says."""

    caller: Caller | None = None
    """The caller that registered the worker; None on a server that knows no callers."""
    secret: bytes = field(default=b"", repr=False)
    """The secret that the worker's process has chosen; empty for a worker of an older version."""

    def is_same(self, other: "Holder") -> bool:
        return self.caller == other.caller and hmac.compare_digest(self.secret, other.secret)


NOBODY = Holder()
"""A caller that shows neither a name nor a secret."""


@dataclass
class WorkerRecord:
    """A worker process, by its last registration and heartbeat."""

    worker_id: str
    kind: worker_pb2.WorkerKind.ValueType
    address: str
    num_weight_ranks: int
    heartbeat_at: float
    """Time of the last heartbeat or registration, on the monotonic clock."""
    holder: Holder = NOBODY
    status: worker_pb2.WorkerStatus = field(
        default_factory=lambda: worker_pb2.WorkerStatus(state=worker_pb2.WORKER_STATE_IDLE)
    )
    kv_cache_use: Samples = field(init=False, default_factory=Samples)
    """The KV cache use of a generator, from its heartbeats."""
    lost: bool = field(init=False, default=False)
    loss_reason: str = field(init=False, default="")
    quarantine: str = field(init=False, default="")
    """The reason why the run gives the generator no weights anymore; empty while the generator gets weights."""


class WorkerRegistry:
    """Keeps leases, and notifies listeners of workers that came or were lost."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: dict[str, WorkerRecord] = {}
        self.changed = Signal()
        """Notified when a worker registered, was lost, or changed its state."""

    def register(
        self,
        worker_id: str,
        kind: worker_pb2.WorkerKind.ValueType,
        address: str,
        num_weight_ranks: int,
        holder: Holder = NOBODY,
    ) -> WorkerRecord:
        """Registers a worker for `holder`, or renews its registration. Marks other workers at its address as lost."""
        if not worker_id:
            raise invalid("worker_id", "is required")
        if len(worker_id) > MAX_ID_CHARS:
            raise invalid("worker_id", f"must have at most {MAX_ID_CHARS} characters (given: {len(worker_id)})")
        if kind not in _KINDS:
            raise invalid("kind", f"must be one of {', '.join(map(str, sorted(_KINDS)))} (given: {kind})")
        if len(address) > MAX_ID_CHARS or not _ADDRESS.fullmatch(address):
            raise invalid("address", f"must be host:port (given: {address[:MAX_ID_CHARS]!r})")
        if num_weight_ranks < 0:
            raise invalid("num_weight_ranks", f"must be at least 0 (given: {num_weight_ranks})")
        for other in self._records.values():
            if other.address == address and other.worker_id != worker_id and not other.lost:
                self._mark_lost(other, f"another process took its address {address}")
        known = self._records.get(worker_id)
        if known is None:
            self._make_room()
        record = known or WorkerRecord(worker_id, kind, address, num_weight_ranks, self._clock())
        record.address, record.num_weight_ranks, record.holder = address, num_weight_ranks, holder
        record.heartbeat_at = self._clock()
        record.lost, record.loss_reason, record.quarantine = False, "", ""
        self._records[worker_id] = record
        self.changed.notify()
        return record

    def _make_room(self) -> None:
        """If there are too many workers, forgets the first lost one. Raises `ResourceExhausted` if none is lost."""
        if len(self._records) < MAX_WORKERS:
            return
        lost = next((record.worker_id for record in self._records.values() if record.lost), None)
        if lost is None:
            raise ResourceExhausted(
                f"this coordinator has {MAX_WORKERS} workers, its maximum: end some, or use another coordinator",
                reason=ErrorReason.TOO_MANY_WORKERS,
                retry_after_s=LEASE_S,
            )
        del self._records[lost]

    def displaced_by(self, worker_id: str, address: str, holder: Holder = NOBODY) -> list[WorkerRecord]:
        """Returns the workers with a valid lease that would lose it to this registration."""
        return [
            record
            for record in self._records.values()
            if not record.lost
            and (record.worker_id == worker_id or record.address == address)
            and not (record.worker_id == worker_id and record.address == address and record.holder.is_same(holder))
        ]

    def heartbeat(self, worker_id: str, status: worker_pb2.WorkerStatus, holder: Holder = NOBODY) -> None:
        """Renews a lease. Raises `NotFound` for an unknown or lost worker, which has to register again, and
        `PermissionDenied` for anybody but the holder of the lease."""
        record = self._records.get(worker_id)
        if record is None or record.lost:
            raise NotFound(f"worker {worker_id!r} is unknown or lost; register it", reason=ErrorReason.UNKNOWN_WORKER)
        if not record.holder.is_same(holder):
            raise PermissionDenied(
                f"the worker {worker_id!r} was registered by another caller or with another lease_secret: only the "
                "process that registered the worker can renew its lease",
                metadata={"worker_id": worker_id},
            )
        record.heartbeat_at = self._clock()
        if record.status.state != status.state:
            self.changed.notify()
        record.status.CopyFrom(status)
        record.status.message = status.message[:MAX_MESSAGE_CHARS]
        if status.load.HasField("kv_cache_use"):
            record.kv_cache_use.add(status.load.kv_cache_use)

    def report_lost(self, worker_id: str, reason: str) -> None:
        """Marks a worker as lost at once, without waiting for its lease to expire."""
        record = self._records.get(worker_id)
        if record is not None and not record.lost:
            self._mark_lost(record, reason)

    def expire(self) -> None:
        """Marks the workers with an expired lease as lost, and forgets those that were lost long ago."""
        for record in list(self._records.values()):
            age_s = self.heartbeat_age_s(record)
            if not record.lost and age_s > LEASE_S:
                self._mark_lost(record, f"no heartbeat for {age_s:.0f} s")
            elif record.lost and age_s > LOST_SHOWN_S:
                del self._records[record.worker_id]

    def heartbeat_age_s(self, record: WorkerRecord) -> float:
        """Returns the seconds since a worker's last heartbeat."""
        return self._clock() - record.heartbeat_at

    def alive(self, kind: worker_pb2.WorkerKind.ValueType) -> list[WorkerRecord]:
        """Returns the workers of a kind with a valid lease, in the order of their registration."""
        return [record for record in self._records.values() if record.kind == kind and not record.lost]

    def all(self) -> list[WorkerRecord]:
        """Returns all workers, lost ones included, by kind and id."""
        return sorted(self._records.values(), key=lambda record: (record.kind, record.worker_id))

    async def expire_forever(self) -> None:
        """Expires leases, for as long as the coordinator runs.

        Time during which the event loop stood still does not count, since heartbeats of that time still wait.
        """
        while True:
            began = self._clock()
            await asyncio.sleep(_EXPIRE_EVERY_S)
            self._excuse(self._clock() - began - _EXPIRE_EVERY_S)
            self.expire()

    def _excuse(self, lag_s: float) -> None:
        for record in self._records.values():
            record.heartbeat_at = min(record.heartbeat_at + max(lag_s, 0.0), self._clock())

    def _mark_lost(self, record: WorkerRecord, reason: str) -> None:
        record.lost, record.loss_reason = True, reason
        self.changed.notify()
