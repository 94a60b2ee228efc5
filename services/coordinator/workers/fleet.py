"""The workers that serve a run: configure them as they come, remove them as they are lost.

shoal/worker/reexec.py describes the restart of a worker for its next run, which `Fleet` waits for.
"""

import asyncio

from services.coordinator.store.events import EventLog
from services.coordinator.store.long_work import shown_alive
from services.coordinator.workers.gpu_turns import GpuTurns
from services.coordinator.workers.member import (
    NAMES,
    POLL_S,
    SERVICES,
    Member,
    kind_of,
    loading_status,
    while_leased,
    worker_name,
)
from services.coordinator.workers.presence import is_ending, until_gone
from services.coordinator.workers.registry import WorkerRecord, WorkerRegistry
from services.coordinator.workers.worker_events import WorkerEvents, missing_message
from shoal.concurrency import Signal
from shoal.config import RunConfig
from shoal.config.load import config_struct
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ShoalError
from shoal.rpc.channel import connect
from shoal.v1 import worker_pb2
from shoal.worker.reexec import MAX_END_S

CONFIGURE_TIMEOUT_S = 30.0
RESTART_TIMEOUT_S = MAX_END_S + 60.0
"""Longest wait for a worker that restarts. Its program takes seconds to start, on a busy machine longer."""
_OF_NO_USE = (worker_pb2.WORKER_STATE_FAILED, worker_pb2.WORKER_STATE_IDLE)
_NOT_BACK = f"it restarted, and has not registered again within {RESTART_TIMEOUT_S:.0f} s"


class Fleet:
    """The workers of a run.

    A worker becomes a member once it is configured and has loaded its models. Each registration of a worker makes a
    new member.
    """

    def __init__(self, config: RunConfig, run_id: str, registry: WorkerRegistry, events: EventLog) -> None:
        self._config = config
        self._run_id = run_id
        self._registry = registry
        self._events = events
        self._log = WorkerEvents(events)
        self._members: dict[str, Member] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._arriving: dict[str, Member] = {}
        """The workers that are loading, by worker id."""
        self._failures: dict[str, tuple[WorkerRecord, ShoalError]] = {}
        self._restarting: dict[str, tuple[WorkerRecord, float]] = {}
        """Workers that restart for this run, and their deadlines. They come back under other ids."""
        self._reaching: dict[str, asyncio.Task[None]] = {}
        """By worker id, the calls that wait for members that are out of reach."""
        self._watching: dict[str, asyncio.Task[None]] = {}
        """By worker id, what waits for the end of the worker's process."""
        self._learner_loss = ""
        """Why the attempt's learner was lost; empty while it is not."""
        self._changed = Signal()
        self.gpu_turns = GpuTurns(
            config,
            learner_is_loaded=lambda: bool(self._of_kind(worker_pb2.WORKER_KIND_LEARNER)),
            changed=self._changed,
        )

    @property
    def generators(self) -> list[Member]:
        """Those that stay: one that is leaving gets neither weights nor groups."""
        return [member for member in self._of_kind(worker_pb2.WORKER_KIND_GENERATOR) if not member.is_leaving]

    @property
    def rewards(self) -> list[Member]:
        """Those that stay."""
        return [member for member in self._of_kind(worker_pb2.WORKER_KIND_REWARD) if not member.is_leaving]

    @property
    def learner(self) -> Member:
        """The learner's rank 0. Raises `FailedPrecondition` when it is lost."""
        learners = self._of_kind(worker_pb2.WORKER_KIND_LEARNER)
        if not learners:
            raise self._learner_is_lost()
        return learners[0]

    @property
    def learner_is_leaving(self) -> bool:
        """Whether the learner was told to end, and waits for a checkpoint of its last steps."""
        return any(member.is_leaving for member in self._of_kind(worker_pb2.WORKER_KIND_LEARNER)[:1])

    def _of_kind(self, kind: int) -> list[Member]:
        return [member for member in self._members.values() if member.record.kind == kind]

    async def manage(self) -> None:
        """Follows the registry for as long as the run lasts."""
        try:
            while True:
                self._reconcile()
                await self._registry.wait_for_change(timeout_s=1.0)
        finally:
            for task in (*self._loading.values(), *self._reaching.values(), *self._watching.values()):
                task.cancel()
            for member in self._members.values():
                await member.channel.close()

    def begin_attempt(self) -> None:
        """Lets another attempt use the members: with another learner if one was lost, and without their weights."""
        self._learner_loss = ""
        for member in self.generators:
            member.serving = False

    async def raise_when_learner_is_lost(self) -> None:
        """Waits until the attempt's learner is lost, and the policy with it; then raises `FailedPrecondition`."""
        while not self._learner_loss:
            await self._changed.wait()
        raise self._learner_is_lost()

    async def until_learner_leaves(self) -> None:
        """Waits until the learner was told to end."""
        while not self.learner_is_leaving:
            await self._changed.wait()

    def part_with_learner(self, reason: str) -> FailedPrecondition:
        """Lets a learner go that was told to end; returns the error that ends the attempt."""
        member = self.learner
        self._registry.report_lost(member.record.worker_id, reason)
        self._remove(member, reason)
        return self._learner_is_lost()

    def _learner_is_lost(self) -> FailedPrecondition:
        return FailedPrecondition(f"the learner is lost: {self._learner_loss}", reason=ErrorReason.LEARNER_LOST)

    def _reconcile(self) -> None:
        for member in self._members.values():
            self._follow_end(member)
        alive = {record.worker_id: record for kind in SERVICES for record in self._registry.alive(kind_of(kind))}
        for worker_id, member in list(self._members.items()):
            if worker_id not in alive:
                self._remove(member, member.record.loss_reason)
        for member in self.rewards:
            self._log.add_notice(member)
        for worker_id in list(self._failures):
            if worker_id not in alive:
                del self._failures[worker_id]
        for worker_id, record in alive.items():
            known = worker_id in self._members or worker_id in self._loading or worker_id in self._failures
            if not known:
                self._match_restarted(record)
                self._loading[worker_id] = asyncio.create_task(self._load(record))
        for worker_id, (record, deadline) in list(self._restarting.items()):
            if asyncio.get_running_loop().time() > deadline:
                del self._restarting[worker_id]
                self._log.add("worker_lost", record, f"is lost: {_NOT_BACK}", reason=_NOT_BACK)
                self._changed.notify()

    def _match_restarted(self, record: WorkerRecord) -> None:
        """Takes a new worker for one that restarts: one at the same address, else the first of the same kind."""
        of_kind = [worker_id for worker_id, (left, _) in self._restarting.items() if left.kind == record.kind]
        at_address = [worker_id for worker_id in of_kind if self._restarting[worker_id][0].address == record.address]
        for worker_id in (at_address or of_kind)[:1]:
            del self._restarting[worker_id]

    def _follow_end(self, member: Member) -> None:
        """Ends the lease of a worker whose process ends, and logs once that a worker was told to end."""
        status = member.record.status
        if status.state == worker_pb2.WORKER_STATE_FAILED:
            self._registry.report_lost(member.record.worker_id, status.message)
        elif status.state == worker_pb2.WORKER_STATE_LEAVING and not member.is_leaving:
            member.is_leaving = True
            self._log.add("worker_leaving", member.record, "was told to end")
            self._changed.notify()

    def _remove(self, member: Member, reason: str) -> None:
        has_policy = member in self._of_kind(worker_pb2.WORKER_KIND_LEARNER)[:1]
        del self._members[member.record.worker_id]
        self._watching.pop(member.record.worker_id).cancel()
        member.serving = False
        self._log.add_end(member, reason)
        if has_policy:  # The attempt never used any other learner.
            self._learner_loss = reason
        member.lost.set()  # Its channel stays open for other calls that are under way on it.
        self._changed.notify()

    async def _load(self, record: WorkerRecord) -> None:
        """Configures one worker and waits until it has loaded its models."""
        service, stub_of, configure, _ = SERVICES[record.kind]
        channel = connect(record.address, service)
        stub = stub_of(channel)
        member = self._arriving[record.worker_id] = Member(record, channel, stub)
        self._watching[record.worker_id] = asyncio.create_task(self._watch(member))
        try:
            request = configure(run_id=self._run_id, config=config_struct(self._config))
            async with self.gpu_turns.to_load(record.kind):
                response = await while_leased(member, lambda: stub.Configure(request, timeout=CONFIGURE_TIMEOUT_S))
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
        except ShoalError as error:
            self._watching.pop(record.worker_id).cancel()
            await channel.close()
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
        else:
            # A generator serves once weights are published to it.
            member.serving = record.kind != worker_pb2.WORKER_KIND_GENERATOR
            self._members[record.worker_id] = member
            self._log.add("worker_joined", record, "is ready")
        finally:
            del self._loading[record.worker_id], self._arriving[record.worker_id]
            self._changed.notify()

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

    async def report_lost(self, member: Member, error: ShoalError) -> None:
        """Removes a member after a call to it failed."""
        self._registry.report_lost(member.record.worker_id, f"a call to it failed: {error.message}")
        if self._members.get(member.record.worker_id) is member:
            self._remove(member, member.record.loss_reason)

    def out_of_reach(self, member: Member, error: ShoalError) -> None:
        """Takes a member out of service after a call broke, until it answers again or its lease has expired."""
        if member.is_leaving or member.is_out_of_reach or member.record.worker_id not in self._members:
            return
        member.is_out_of_reach, member.serving = True, False
        self._log.add("worker_out_of_reach", member.record, f"is out of reach: {error.message}", reason=error.reason)
        self._reaching[member.record.worker_id] = asyncio.create_task(self._reach(member))
        self._changed.notify()

    async def _reach(self, member: Member) -> None:
        """Asks a member for its status until it answers or is lost."""
        try:
            # It is about to end, or another process is at its address and not configured yet.
            while (await loading_status(member)).status.state in _OF_NO_USE:
                member.is_out_of_reach = True
                await asyncio.sleep(1.0)
        except ShoalError:
            return  # Its lease has expired.
        finally:
            del self._reaching[member.record.worker_id]
        # A generator serves once the publisher knows its weights.
        member.serving = member.record.kind != worker_pb2.WORKER_KIND_GENERATOR
        self._changed.notify()

    async def still_serves(self, member: Member) -> bool:
        """Whether a member still serves after a call to it broke off. Waits for its answer while its lease lasts."""
        try:
            status = (await loading_status(member)).status
        except FailedPrecondition:
            pass
        else:
            if status.state in (worker_pb2.WORKER_STATE_READY, worker_pb2.WORKER_STATE_LEAVING):
                return True
            self._registry.report_lost(
                member.record.worker_id, status.message or "a process that is not configured answers at its address"
            )
        if self._members.get(member.record.worker_id) is member:
            self._remove(member, member.record.loss_reason)
        return False

    async def wait_until_ready(self) -> None:
        """Waits for a worker of each kind, and for all that are loading or restarting.

        Raises `FailedPrecondition` that names the missing kinds, or the reason why all workers of a kind failed.
        """
        async with shown_alive(self._events, "waiting for workers", self._describe_loading):
            await self._until_ready()

    def _describe_loading(self) -> str:
        """Describes the workers that are loading, and names the kinds that are still to come."""
        alive = [record for kind in SERVICES for record in self._registry.alive(kind_of(kind))]
        loading = [record for record in alive if record.worker_id in self._loading]
        parts = [f"{worker_name(record)} is {record.status.message or 'starting'}" for record in loading]
        here = {record.kind for record in alive}
        return "; ".join(parts + [f"no {name} has registered yet" for kind, name in NAMES.items() if kind not in here])

    async def _until_ready(self) -> None:
        now = asyncio.get_running_loop().time
        deadline = now() + self._config.coordinator.worker_timeout_s
        while True:
            missing = [kind for kind in SERVICES if not self._of_kind(kind)]
            # One that does not answer may be dead, though its lease lasts: whoever can do without it does not wait.
            is_loading = len(self._loading) > sum(member.is_out_of_reach for member in self._arriving.values())
            if not missing and not is_loading and not self._restarting:
                return
            if self._restarting:  # Its time to register and load begins once it is back.
                deadline = now() + self._config.coordinator.worker_timeout_s
            for kind in missing:
                self._raise_if_hopeless(kind)
            remaining = max(deadline, self.gpu_turns.began + self._config.coordinator.worker_timeout_s) - now()
            if remaining <= 0:
                if not missing:
                    return
                raise FailedPrecondition(
                    missing_message(missing, self._config.coordinator.worker_timeout_s), reason=ErrorReason.NO_WORKER
                )
            await self._changed.wait(min(remaining, 1.0))

    def _raise_if_hopeless(self, kind: int) -> None:
        """Raises the first failure of a kind when all its workers have failed."""
        failures = [error for record, error in self._failures.values() if record.kind == kind]
        loading = [1 for record in self._registry.alive(kind_of(kind)) if record.worker_id in self._loading]
        restarting = [1 for record, _ in self._restarting.values() if record.kind == kind]
        if failures and not loading and not restarting:
            raise FailedPrecondition(f"the {NAMES[kind_of(kind)]} cannot serve this run: {failures[0].message}")

    async def wait_for_change(self, timeout_s: float) -> None:
        """Returns when a member came, went, or changed `serving`, or after the timeout."""
        await self._changed.wait(timeout_s)

    def notify(self) -> None:
        """Wakes the waiters after a member's `serving` changed."""
        self._changed.notify()
