"""The workers that are not members of a run yet: they load, failed to load, or restart (shoal/worker/reexec.py)."""

import asyncio
from collections.abc import Callable, Collection

from services.coordinator.workers.ended_processes import is_ending, until_gone
from services.coordinator.workers.gpu_turns import GpuTurns
from services.coordinator.workers.member import (
    NAMES,
    POLL_S,
    SERVICES,
    Kind,
    Member,
    loading_status,
    while_leased,
    worker_name,
)
from services.coordinator.workers.registry import WorkerRecord, WorkerRegistry
from services.coordinator.workers.worker_events import WorkerEvents
from shoal.concurrency import Signal
from shoal.config.live import LiveConfig
from shoal.config.load import config_struct
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ShoalError
from shoal.rpc.channel import connect
from shoal.v1 import worker_pb2
from shoal.worker.reexec import MAX_END_S

CONFIGURE_TIMEOUT_S = 30.0
RESTART_TIMEOUT_S = MAX_END_S + 60.0
"""Maximum wait in seconds for a worker that restarts, maybe on a busy machine."""
_NOT_BACK = f"it restarted, and has not registered again within {RESTART_TIMEOUT_S:.0f} s"


class Arrivals:
    """Configures workers as they register, and knows for which workers the run still has to wait."""

    def __init__(
        self,
        config: LiveConfig,
        run_id: str,
        registry: WorkerRegistry,
        log: WorkerEvents,
        gpu_turns: GpuTurns,
        *,
        joins: Callable[[Member], None],
        changed: Signal,
    ) -> None:
        """`joins` is called with each worker that has loaded its models."""
        self._config = config
        self._run_id = run_id
        self._registry = registry
        self._log = log
        self._gpu_turns = gpu_turns
        self._joins = joins
        self._changed = changed
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._members: dict[str, Member] = {}
        """The workers that are loading, by worker id."""
        self._failures: dict[str, tuple[WorkerRecord, ShoalError]] = {}
        self._restarting: dict[str, tuple[WorkerRecord, float]] = {}
        """Workers that restart for this run, and their deadlines. After the restart a worker has another id."""

    @property
    def are_loading(self) -> bool:
        """Whether a worker that answers calls is loading. Any other worker may be dead before its lease expires."""
        return len(self._loading) > sum(member.is_out_of_reach for member in self._members.values())

    @property
    def are_restarting(self) -> bool:
        return bool(self._restarting)

    def knows(self, worker_id: str) -> bool:
        """Returns whether a worker is loading, or has failed to load."""
        return worker_id in self._loading or worker_id in self._failures

    def begin(self, record: WorkerRecord) -> None:
        """Begins to load a worker that has registered."""
        self._match_restarted(record)
        self._loading[record.worker_id] = asyncio.create_task(self._load(record))

    def forget(self, alive: Collection[str]) -> None:
        """Forgets the failures of lost workers, and no longer waits for workers whose restart takes too long."""
        for worker_id in list(self._failures):
            if worker_id not in alive:
                del self._failures[worker_id]
        for worker_id, (record, deadline) in list(self._restarting.items()):
            if asyncio.get_running_loop().time() > deadline:
                del self._restarting[worker_id]
                self._log.add("worker_lost", record, f"is lost: {_NOT_BACK}", reason=_NOT_BACK)
                self._changed.notify()

    def close(self) -> None:
        """Ends all loading."""
        for task in self._loading.values():
            task.cancel()

    def describe(self) -> str:
        """Describes the workers that are loading, and names the kinds that are still to come."""
        alive = [record for kind in SERVICES for record in self._registry.alive(kind)]
        loading = [record for record in alive if record.worker_id in self._loading]
        parts = [f"{worker_name(record)} is {record.status.message or 'starting'}" for record in loading]
        here = {record.kind for record in alive}
        return "; ".join(parts + [f"no {name} is registered" for kind, name in NAMES.items() if kind not in here])

    def raise_if_hopeless(self, kind: Kind) -> None:
        """Raises `FailedPrecondition` with the first failure of a kind if all workers of this kind have failed."""
        failures = [error for record, error in self._failures.values() if record.kind == kind]
        loading = [1 for record in self._registry.alive(kind) if record.worker_id in self._loading]
        restarting = [1 for record, _ in self._restarting.values() if record.kind == kind]
        if failures and not loading and not restarting:
            raise FailedPrecondition(f"the {NAMES[kind]} cannot serve this run: {failures[0].message}")

    def _match_restarted(self, record: WorkerRecord) -> None:
        """Takes a new worker for the restarted worker at the same address, or else for the first of the same kind."""
        of_kind = [worker_id for worker_id, (left, _) in self._restarting.items() if left.kind == record.kind]
        at_address = [worker_id for worker_id in of_kind if self._restarting[worker_id][0].address == record.address]
        for worker_id in (at_address or of_kind)[:1]:
            del self._restarting[worker_id]

    async def _load(self, record: WorkerRecord) -> None:
        """Configures one worker and waits until it has loaded its models."""
        service, stub_of, *_ = SERVICES[record.kind]
        channel = connect(record.address, service)
        member = self._members[record.worker_id] = Member(record, channel, stub_of(channel))
        member.watching = asyncio.create_task(self._watch(member))
        try:
            await self._configure(member)
        except asyncio.CancelledError:
            member.stop_watching()
            raise
        except ShoalError as error:
            member.stop_watching()
            await channel.close()
            self._add_failure(record, error)
        else:
            self._joins(member)
        finally:
            del self._loading[record.worker_id], self._members[record.worker_id]
            self._changed.notify()

    async def _configure(self, member: Member) -> None:
        """Raises `FailedPrecondition` when the worker cannot load its models."""
        record, configure = member.record, SERVICES[member.record.kind][2]
        request = configure(run_id=self._run_id, config=config_struct(self._config()))
        async with self._gpu_turns.to_load(record.kind):
            response = await while_leased(member, lambda: member.stub.Configure(request, timeout=CONFIGURE_TIMEOUT_S))
            while response.status.state in (worker_pb2.WORKER_STATE_LOADING, worker_pb2.WORKER_STATE_IDLE):
                await asyncio.sleep(POLL_S)
                response = await loading_status(member)
        record.status.CopyFrom(response.status)  # Newer than its last heartbeat.
        if response.status.state == worker_pb2.WORKER_STATE_FAILED:
            if await is_ending(member):
                self._registry.report_lost(record.worker_id, response.status.message)
            raise FailedPrecondition(response.status.message, reason=ErrorReason.WORKER_FAILED)
        if record.kind == worker_pb2.WORKER_KIND_GENERATOR:
            # The number that it registered with may be from before it was configured.
            record.num_weight_ranks = (await loading_status(member)).num_weight_ranks

    def _add_failure(self, record: WorkerRecord, error: ShoalError) -> None:
        if error.reason == ErrorReason.STARTING_OVER:
            self._expect_restart(record)
            return
        if error.reason == ErrorReason.ENDING:
            self._registry.report_lost(record.worker_id, error.message)
        if record.lost:  # It may come back, and cannot be said to fail.
            self._log.add("worker_lost", record, f"is lost: {record.loss_reason}", reason=record.loss_reason)
        else:
            self._failures[record.worker_id] = (record, error)
            self._log.add("worker_failed", record, f"cannot serve this run: {error.message}")

    async def _watch(self, member: Member) -> None:
        """Ends the lease of a worker as soon as its process is seen to have ended."""
        await until_gone(member)
        status = member.record.status
        why = status.message if status.state == worker_pb2.WORKER_STATE_FAILED else "nothing listens at its address"
        self._registry.report_lost(member.record.worker_id, f"its process has ended: {why}")

    def _expect_restart(self, record: WorkerRecord) -> None:
        """Records that a worker of an earlier run restarts for this one. It will register as another worker."""
        self._restarting[record.worker_id] = (record, asyncio.get_running_loop().time() + RESTART_TIMEOUT_S)
        self._registry.report_lost(record.worker_id, f"it restarts for run {self._run_id}")
        self._log.add("worker_restarting", record, "served another run, and restarts for this one")
