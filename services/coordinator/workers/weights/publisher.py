"""Publishing weights to the generators, and the handling of generators that fail.

    publish -> pass over all generators -> all loaded
                     | some failed: those at fault are left out at once; event log and fault_finding.py say why
                     v
               epoch + 1, the whole pass again with the others -> all loaded
                     | nothing tells who is at fault, twice
                     v
               one pass for each that is left

A generator that was left out is STALE. `catch_up` tries it again, alone and with growing pauses, until it is
quarantined (`Standing`). A pass (weight_broadcast.py): form the group of the epoch if the membership changed;
every generator pauses and reports READY; the learner broadcasts; every generator loads, checks, and reports DONE. Every
wait has a deadline.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.coordinator.store.events import EventLog
from services.coordinator.workers.fleet import Fleet
from services.coordinator.workers.learner_client import CONTROL_TIMEOUT_S, LearnerClient
from services.coordinator.workers.member import Member, status_of
from services.coordinator.workers.weights.canary import Reading
from services.coordinator.workers.weights.fault_finding import Failures, at_fault
from services.coordinator.workers.weights.weight_broadcast import Transfer, WeightGroup, form_group
from shoal.arrays import Int32Array
from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import ShoalError, Unavailable
from shoal.quantities import counted
from shoal.rollout import WeightVersion
from shoal.v1 import generator_pb2, weights_pb2
from shoal.wire import int32_to_wire, version_from_wire

LEAVE_TIMEOUT_S = 5.0
CANARY_TOKENS = 32
"""Number of tokens of the canary prompt, which are enough to reach every layer and cost almost nothing."""


@dataclass
class PublishReport:
    """The result of a publish."""

    version: WeightVersion
    loaded: list[str] = field(default_factory=list)
    """Names of the generators that have the version after the publish."""
    duration_s: float = 0.0
    pause_s: float = 0.0
    """The longest time in seconds that a generator was paused."""
    broadcast_s: float = 0.0
    num_bytes: int = 0
    canary_gap: float = 0.0
    """Mean absolute difference between engine and learner on the canary's log-probabilities, for the worst generator.
    """


class Publisher:
    """Keeps every generator on the learner's weights."""

    def __init__(
        self,
        config: RunConfig,
        fleet: Fleet,
        learner: LearnerClient,
        events: EventLog,
        next_epoch: Callable[[], Awaitable[int]],
        canary: Int32Array,
    ) -> None:
        """`next_epoch` returns epochs that this run has never used, not even before a restore.

        `canary`: [P] tokens of the prompt whose log-probabilities prove each load; P at least 2.
        """
        self._config = config.weights
        self._fleet = fleet
        self._learner = learner
        self._events = events
        self._canary = weights_pb2.Canary(token_ids=int32_to_wire(canary[:CANARY_TOKENS]))
        self._next_epoch = next_epoch
        self._epoch = 0
        self._group: WeightGroup | None = None
        """The group of the current epoch, until one of its members fails."""
        self._usual_s: float | None = None
        """The duration of the last transfer that all members loaded."""
        self._readings: dict[str, Reading] = {}
        """The canary's reading at a generator's last load that passed all checks, by worker id."""
        self.lock = asyncio.Lock()
        """Taken during a publish, and by everything else that pauses or resumes generators."""

    async def publish(self, version: WeightVersion) -> PublishReport:
        """Loads the learner's weights into all generators, except those that failed before; see `catch_up`.

        Generators that fail become STALE and serve nothing.
        """
        async with self.lock:
            report = await self._publish(
                version, [member for member in self._reachable if not member.standing.num_failures]
            )
            self._log(report)
            return report

    @property
    def has_late(self) -> bool:
        """Whether a generator that does not serve may get weights now."""
        return bool(self._late())

    def _late(self) -> list[Member]:
        now = asyncio.get_running_loop().time()
        return [
            member
            for member in self._reachable
            if not member.serving
            and member.standing.may_try(now)
            and (self._config.inflight_updates or not member.outstanding)
        ]

    async def catch_up(self, version: WeightVersion) -> None:
        """Loads a version into generators that missed it, separately into each that failed. Others go on sampling."""
        async with self.lock:
            stale = self._late()
            late = [member for member in stale if not await self._has(member, version)]
            for member in stale:
                member.serving = member not in late
                if member.serving:
                    member.version = version
            self._fleet.changed.notify()
            new = [member for member in late if not member.standing.num_failures]
            for members in (new, *([member] for member in late if member not in new)):
                report = await self._publish(version, members)
                if report.loaded:
                    self._log(report)

    async def _has(self, member: Member, version: WeightVersion) -> bool:
        """Whether a generator that was out of reach for a while has the version nevertheless.

        Its own report is not enough, since it may have loaded other weights than were sent.
        """
        reading = self._readings.get(member.record.worker_id)
        if member.standing.is_in_doubt or reading is None or reading.version != version:
            return False
        try:
            status = await status_of(member)
        except ShoalError:
            return False
        return status.HasField("version") and version_from_wire(status.version) == version

    async def _publish(self, version: WeightVersion, members: Sequence[Member]) -> PublishReport:
        report = PublishReport(version)
        began = time.monotonic()
        waiting = list(members)
        num_unexplained = 0
        while waiting and num_unexplained < 2:
            found = await self._pass(version, waiting, report)
            waiting = [
                member
                for member in waiting
                if member.name not in report.loaded and member.record.worker_id not in found and not member.record.lost
            ]
            num_unexplained += bool(waiting and not found)
        for member in waiting:
            await self._pass(version, [member], report)
        self._fleet.changed.notify()
        report.duration_s = time.monotonic() - began
        return report

    def _log(self, report: PublishReport) -> None:
        version, num_loaded = report.version, len(report.loaded)
        self._events.add(
            "publish",
            f"weights {version} are on {num_loaded} generator{'' if num_loaded == 1 else 's'}"
            f" after {report.duration_s:.2f} s (paused for {report.pause_s:.2f} s)",
            policy_version=version.policy_version,
            attempt=version.attempt,
            epoch=self._epoch,
            generators=report.loaded,
            duration_s=report.duration_s,
            pause_s=report.pause_s,
            broadcast_s=report.broadcast_s,
            num_bytes=report.num_bytes,
            canary_gap=report.canary_gap,
        )

    async def _pass(self, version: WeightVersion, members: list[Member], report: PublishReport) -> Failures:
        """Makes one pass over some generators. Leaves out those at fault, and returns their errors."""
        failures: Failures = {}
        if self._group is None or members != self._group.members:
            failures = await self._form_group(members)
        if self._group is not None:
            failures = await self._transfer(version, self._group, report)
        if not failures:
            return {}
        self._group = None  # The next pass needs a new epoch, even with the same members.
        waiting = [member for member in members if member.name not in report.loaded]
        for member in waiting:
            member.serving = False
        found = await at_fault(waiting, failures)
        for member in waiting:
            if (error := found.get(member.record.worker_id)) is not None:
                self._leave_out(version, member, error)
        return found

    async def _form_group(self, members: list[Member]) -> Failures:
        """Makes the group of the next epoch. Returns the errors of members that did not join."""
        self._epoch = await self._next_epoch()
        self._group = None
        self._group, failures = await form_group(self._learner, members, self._epoch, self._config)
        return failures

    async def _transfer(self, version: WeightVersion, group: WeightGroup, report: PublishReport) -> Failures:
        """Transfers the weights over a group. Puts members that loaded them into service, and returns the others."""
        transfer = Transfer(
            self._learner,
            group,
            self._config,
            version=version,
            canary=self._canary,
            before=self._readings,
            usual_s=self._usual_s,
        )
        began = time.monotonic()
        result = await transfer.run()
        if not result.failures:
            self._usual_s = time.monotonic() - began
        if result.sent is not None:
            report.broadcast_s, report.num_bytes = result.sent.broadcast_s, result.sent.num_bytes
        for member in group.members:
            if (loaded := result.loaded.get(member.record.worker_id)) is not None:
                member.serving = True
                member.version = version
                member.standing.loaded()
                self._readings[member.record.worker_id] = loaded.canary
                report.loaded.append(member.name)
                report.pause_s = max(report.pause_s, loaded.pause_s)
                report.canary_gap = max(report.canary_gap, loaded.canary.gap)
        return result.failures

    def _leave_out(self, version: WeightVersion, member: Member, error: ShoalError) -> None:
        """Counts a failed load of a generator, and reports the consequence."""
        now = asyncio.get_running_loop().time()
        pause_s = member.standing.load_failed(now, max_failures=self._config.max_failed_loads)
        facts: dict[str, Any] = {"worker_id": member.record.worker_id, "address": member.record.address}
        follows = "" if member.standing.is_quarantined else f"; it is tried again alone in {pause_s:g} s or later"
        self._events.add(
            "publish_failed",
            f"{member.name} did not load weights {version} in epoch {self._epoch}: {error.message}{follows}",
            **facts,
            epoch=self._epoch,
            policy_version=version.policy_version,
            reason=error.reason,
            num_failures=member.standing.num_failures,
        )
        if isinstance(error, Unavailable) and error.reason == ErrorReason.UNAVAILABLE:
            self._fleet.out_of_reach(member, error)
        if member.standing.is_quarantined:
            failed = f"{counted(member.standing.num_failures, 'load')} of weights failed in a row"
            member.record.quarantine = f"quarantined, since {failed}: restart the generator; last error: {error}"
            self._events.add(
                "worker_quarantined",
                f"{member.name} failed {counted(member.standing.num_failures, 'load')} in a row "
                "(weights.max_failed_loads) and gets no weights until it registers again; restart the generator",
                **facts,
                reason=error.reason,
            )

    async def disband(self) -> None:
        """Makes the generators leave a group whose learner is lost. This aborts calls that still wait in the group."""
        members, self._group = self._group.members if self._group else (), None
        request = generator_pb2.LeaveWeightGroupRequest()
        leaving = (member.stub.LeaveWeightGroup(request, timeout=LEAVE_TIMEOUT_S) for member in members)
        # One that does not answer leaves when it joins the next group.
        await asyncio.gather(*leaving, return_exceptions=True)

    async def pause(self) -> None:
        """Stops sampling on every generator at once. A generator that is loading weights is paused after the load."""
        request = generator_pb2.PauseGenerationRequest()
        # In the middle of a publish this one does not wait. The lock keeps the order of pauses and resumes.
        early = asyncio.create_task(self._call("PauseGeneration", request, self._serving), name="early pause")
        is_publishing = self.lock.locked()
        async with self.lock:
            await early
            if is_publishing:  # For those that serve since then.
                await self._call("PauseGeneration", request, self._serving)

    async def resume(self) -> None:
        """Resumes sampling on every generator that serves."""
        async with self.lock:
            await self._call("ResumeGeneration", generator_pb2.ResumeGenerationRequest(), self._serving)

    async def sleep(self) -> None:
        """Frees the GPU memory of every generator until `wake`, even of generators without weights."""
        async with self.lock:
            await self._call("Sleep", generator_pb2.SleepRequest(), self._reachable)

    async def wake(self) -> None:
        """Ends `sleep`. Call it before a publish, because waking may take longer than `weights.ready_timeout_s`."""
        async with self.lock:
            await self._call("Wake", generator_pb2.WakeRequest(), self._reachable)

    @property
    def _reachable(self) -> list[Member]:
        return [member for member in self._fleet.generators if not member.is_out_of_reach]

    @property
    def _serving(self) -> list[Member]:
        return [member for member in self._fleet.generators if member.serving]

    async def _call(self, method: str, request: object, members: Sequence[Member]) -> None:
        async def call(member: Member) -> None:
            try:
                await getattr(member.stub, method)(request, timeout=CONTROL_TIMEOUT_S)
            except ShoalError as error:
                self._fleet.out_of_reach(member, error)

        await asyncio.gather(*(call(member) for member in members))
