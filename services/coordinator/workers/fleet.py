"""The workers that serve a run: the members of the run as they join, change and are lost."""

import asyncio

from services.coordinator.store.events import EventLog
from services.coordinator.store.long_work import shown_alive
from services.coordinator.workers.arrivals import Arrivals
from services.coordinator.workers.gpu_turns import GpuTurns
from services.coordinator.workers.member import SERVICES, Member, loading_status
from services.coordinator.workers.registry import WorkerRegistry
from services.coordinator.workers.worker_events import WorkerEvents, missing_message
from shoal.concurrency import Signal
from shoal.config.live import LiveConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ShoalError
from shoal.v1 import worker_pb2

_OF_NO_USE = (worker_pb2.WORKER_STATE_FAILED, worker_pb2.WORKER_STATE_IDLE)


class Fleet:
    """The workers of a run. Each registration of a worker makes a new member, once its models are loaded."""

    def __init__(self, config: LiveConfig, run_id: str, registry: WorkerRegistry, events: EventLog) -> None:
        self._config = config
        self._registry = registry
        self._events = events
        self._log = WorkerEvents(events)
        self._members: dict[str, Member] = {}
        self._reaching: dict[str, asyncio.Task[None]] = {}
        """By worker id, the calls that wait for members that are out of reach."""
        self._learner_loss = ""
        """The reason why the attempt's learner was lost; empty while the learner is not lost."""
        self.changed = Signal()
        """Notified when a member came, went, or changed `serving`."""
        self.gpu_turns = GpuTurns(
            config(),
            learner_is_loaded=lambda: bool(self._of_kind(worker_pb2.WORKER_KIND_LEARNER)),
            changed=self.changed,
        )
        self._arrivals = Arrivals(
            config, run_id, registry, self._log, self.gpu_turns, joins=self._add, changed=self.changed
        )
        self._has_begun = False
        """Whether an attempt has had its workers."""

    @property
    def generators(self) -> list[Member]:
        """The generators that are not leaving: a leaving generator gets neither weights nor groups."""
        return [member for member in self._of_kind(worker_pb2.WORKER_KIND_GENERATOR) if not member.is_leaving]

    @property
    def rewards(self) -> list[Member]:
        """The reward services that are not leaving."""
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
                await self._registry.changed.wait(1.0)
        finally:
            self._arrivals.close()
            for task in self._reaching.values():
                task.cancel()
            for member in self._members.values():
                member.stop_watching()
                await member.channel.close()

    def begin_attempt(self) -> None:
        """Prepares for another attempt, which needs a new learner if one was lost, and publishes weights again."""
        self._learner_loss = ""
        for member in self.generators:
            member.serving = False

    async def raise_when_learner_is_lost(self) -> None:
        """Waits until the attempt's learner is lost, and the policy with it; then raises `FailedPrecondition`."""
        while not self._learner_loss:
            await self.changed.wait()
        raise self._learner_is_lost()

    async def until_learner_leaves(self) -> None:
        """Waits until the learner was told to end."""
        while not self.learner_is_leaving:
            await self.changed.wait()

    def part_with_learner(self, reason: str) -> FailedPrecondition:
        """Removes the learner, which was told to end. Returns the error that ends the attempt."""
        member = self.learner
        self._registry.report_lost(member.record.worker_id, reason)
        self._remove(member, reason)
        return self._learner_is_lost()

    def _learner_is_lost(self) -> FailedPrecondition:
        return FailedPrecondition(f"the learner is lost: {self._learner_loss}", reason=ErrorReason.LEARNER_LOST)

    def _reconcile(self) -> None:
        for member in self._members.values():
            self._follow_end(member)
        alive = {record.worker_id: record for kind in SERVICES for record in self._registry.alive(kind)}
        for worker_id, member in list(self._members.items()):
            if worker_id not in alive:
                self._remove(member, member.record.loss_reason)
        for member in self.rewards:
            self._log.add_notice(member)
        self._arrivals.forget(alive)
        for worker_id, record in alive.items():
            if worker_id not in self._members and not self._arrivals.knows(worker_id):
                self._arrivals.begin(record)

    def _add(self, member: Member) -> None:
        # A generator serves once weights are published to it.
        member.serving = member.record.kind != worker_pb2.WORKER_KIND_GENERATOR
        self._members[member.record.worker_id] = member
        self._log.add("worker_joined", member.record, "is ready")

    def _follow_end(self, member: Member) -> None:
        """Ends the lease of a worker whose process ends, and logs once that a worker was told to end."""
        status = member.record.status
        if status.state == worker_pb2.WORKER_STATE_FAILED:
            self._registry.report_lost(member.record.worker_id, status.message)
        elif status.state == worker_pb2.WORKER_STATE_LEAVING:
            self.leaves(member)

    def leaves(self, member: Member) -> None:
        """Gives no more work to a member that was told to end. Calls may show this earlier than its heartbeats."""
        if not member.is_leaving:
            member.is_leaving = True
            self._log.add("worker_leaving", member.record, "was told to end")
            self.changed.notify()

    def _remove(self, member: Member, reason: str) -> None:
        has_policy = member in self._of_kind(worker_pb2.WORKER_KIND_LEARNER)[:1]
        del self._members[member.record.worker_id]
        member.stop_watching()
        member.serving = False
        self._log.add_end(member, reason)
        if has_policy:  # The attempt never used any other learner.
            self._learner_loss = reason
        member.lost.set()  # Its channel stays open for other calls that are under way on it.
        self.changed.notify()

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
        self.changed.notify()

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
        self.changed.notify()

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
                member.record.worker_id, status.message or "the process at its address is not configured"
            )
        if self._members.get(member.record.worker_id) is member:
            self._remove(member, member.record.loss_reason)
        return False

    def describe_gap(self) -> str:
        """Describes why groups cannot be sampled and scored; empty if a generator and a reward service have joined."""
        return "" if self.generators and self.rewards else self._arrivals.describe()

    async def wait_until_ready(self) -> None:
        """Waits for a worker of each kind. The first attempt also waits for all workers that load or restart.

        Raises `FailedPrecondition` with the missing kinds, or with the reason why all workers of a kind failed.
        """
        async with shown_alive(self._events, "waiting for workers", self._arrivals.describe):
            await self._until_ready()
        self._has_begun = True

    async def _until_ready(self) -> None:
        now = asyncio.get_running_loop().time
        deadline = now() + self._config().coordinator.worker_timeout_s
        while True:
            missing = [kind for kind in SERVICES if not self._of_kind(kind)]
            if not missing and (self._has_begun or not (self._arrivals.are_loading or self._arrivals.are_restarting)):
                return
            if self._arrivals.are_restarting:  # Its time to register and load begins once it is back.
                deadline = now() + self._config().coordinator.worker_timeout_s
            for kind in missing:
                self._arrivals.raise_if_hopeless(kind)
            remaining = max(deadline, self.gpu_turns.began + self._config().coordinator.worker_timeout_s) - now()
            if remaining <= 0:
                if not missing:
                    return
                timeout_s = self._config().coordinator.worker_timeout_s
                raise FailedPrecondition(
                    missing_message(missing, timeout_s, self._arrivals.describe()), reason=ErrorReason.NO_WORKER
                )
            await self.changed.wait(min(remaining, 1.0))
