"""Publishing weights: who is in the broadcast group, and what happens when one of them fails.

    publish -> pass over all generators -> all loaded
                     | some failed: the event log says which and why
                     v
               epoch + 1, the whole pass again without the dead -> all loaded
                     | failed again
                     v
               each that is left alone -> loaded, or STALE until the next publish

A pass is: form the epoch's group if the membership changed; every generator pauses and says READY; the learner
broadcasts; every generator loads, checks and says DONE. Nothing in it waits without a deadline.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from services.coordinator.events import EventLog
from services.coordinator.fleet import STATUS_TIMEOUT_S, Fleet, Member, held_version
from services.coordinator.learner import CONTROL_TIMEOUT_S, Learner
from shoal.config import RunConfig
from shoal.errors import DataLoss, DeadlineExceeded, ShoalError, Unavailable
from shoal.rollout import Int32Array, WeightVersion
from shoal.v1 import generator_pb2, learner_pb2, weights_pb2
from shoal.wire import float32_from_wire, int32_to_wire, version_to_wire

CANARY_TOKENS = 32
"""Tokens of the canary prompt: enough to reach every layer, few enough to cost nothing."""


@dataclass
class PublishReport:
    """What a publish came to."""

    version: WeightVersion
    loaded: list[str] = field(default_factory=list)
    """Names of the generators that hold the version now."""
    duration_s: float = 0.0
    pause_s: float = 0.0
    """Longest pause that a generator saw."""
    broadcast_s: float = 0.0
    num_bytes: int = 0
    canary_gap: float = 0.0
    """Mean absolute difference between engine and learner on the canary's log-probabilities; the worst generator."""


class Publisher:
    """Keeps every generator on the learner's weights."""

    def __init__(
        self,
        config: RunConfig,
        fleet: Fleet,
        learner: Learner,
        events: EventLog,
        next_epoch: Callable[[], int],
        canary: Int32Array,
    ) -> None:
        """`next_epoch` gives epochs that were never used in this run, restores included.

        `canary`: [P] tokens of the prompt whose log-probabilities prove each load; P at least 2.
        """
        self._config = config.weights
        self._fleet = fleet
        self._learner = learner
        self._events = events
        self._canary = weights_pb2.Canary(token_ids=int32_to_wire(canary[:CANARY_TOKENS]))
        self._next_epoch = next_epoch
        self._epoch = 0
        self._group: list[Member] = []
        """The members of the current epoch's group, in rank order."""
        self._verified: dict[str, WeightVersion] = {}
        """By worker id, the version that a generator was last seen to hold, byte for byte."""
        self.lock = asyncio.Lock()
        """Held during a publish: who pauses or resumes generators takes it too."""

    async def publish(self, version: WeightVersion) -> PublishReport:
        """Brings every generator to the learner's weights. Those that fail are STALE, and out of service."""
        async with self.lock:
            return await self._publish(version, list(self._fleet.generators))

    async def catch_up(self, version: WeightVersion) -> PublishReport | None:
        """Brings generators that missed the version to it; the others go on sampling meanwhile."""
        async with self.lock:
            stale = [member for member in self._fleet.generators if not member.serving]
            late = [member for member in stale if not await self._holds(member, version)]
            for member in stale:
                member.serving = member not in late
                if member.serving:
                    member.version = version
            self._fleet.notify()
            return await self._publish(version, late) if late else None

    async def _holds(self, member: Member, version: WeightVersion) -> bool:
        """Whether a generator that was out of reach for a while has the version all the same.

        Its word is not enough: what it loaded may not have been what was sent.
        """
        if self._verified.get(member.record.worker_id) != version:
            return False
        try:
            status = await member.stub.GetStatus(
                generator_pb2.GeneratorServiceGetStatusRequest(), timeout=STATUS_TIMEOUT_S
            )
        except ShoalError:
            return False
        return held_version(status) == version

    async def _publish(self, version: WeightVersion, members: Sequence[Member]) -> PublishReport:
        report = PublishReport(version)
        began = time.monotonic()
        waiting = list(members)
        for _ in range(2):
            waiting = await self._pass(version, waiting, report)
            if not waiting:
                break
        else:
            for member in waiting:
                await self._pass(version, [member], report)
        self._fleet.notify()
        report.duration_s = time.monotonic() - began
        self._events.add(
            "publish",
            f"weights {version} are on {len(report.loaded)} generator{'' if len(report.loaded) == 1 else 's'}"
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
        return report

    async def _pass(self, version: WeightVersion, members: list[Member], report: PublishReport) -> list[Member]:
        """One pass over some generators; returns those that are alive and have not loaded."""
        if not members:
            return []
        failures = {} if members == self._group else await self._form_group(members)
        if not failures:
            failures = await self._transfer(version, members, report)
        if not failures:
            return []
        self._group = []  # The next pass needs a new epoch, whoever is in it.
        return await self._survivors(version, members, failures, report)

    async def _survivors(
        self, version: WeightVersion, members: list[Member], failures: dict[str, ShoalError], report: PublishReport
    ) -> list[Member]:
        """Takes the members that failed out of service; returns those that another pass can reach."""
        waiting = [member for member in members if member.name not in report.loaded]
        for member in waiting:
            member.serving = False
        answers = await asyncio.gather(*(self._fleet.answers(member) for member in waiting))
        dead = [member for member, answer in zip(waiting, answers, strict=True) if not answer]
        # Once a member is dead the others fail too, of a broadcast that broke off: that is not their doing.
        for member in dead or waiting:
            if (error := failures.get(member.record.worker_id)) is not None:
                self._events.add(
                    "publish_failed",
                    f"{member.name} did not load weights {version} in epoch {self._epoch}: {error.message}",
                    worker_id=member.record.worker_id,
                    address=member.record.address,
                    epoch=self._epoch,
                    policy_version=version.policy_version,
                    reason=error.reason,
                )
        return [member for member in waiting if member not in dead]

    async def _form_group(self, members: list[Member]) -> dict[str, ShoalError]:
        """Makes the next epoch's group of some generators; returns who did not join, and why."""
        self._epoch = self._next_epoch()
        self._group = []
        world_size = 1 + sum(member.record.num_weight_ranks for member in members)
        rendezvous, manifest = await self._learner.create_weight_group(self._epoch, world_size)

        async def join(member: Member, rank_offset: int) -> None:
            request = generator_pb2.JoinWeightGroupRequest(
                rendezvous=rendezvous, rank_offset=rank_offset, manifest=manifest
            )
            await member.stub.JoinWeightGroup(request, timeout=self._config.timeout_s)

        joins: dict[str, asyncio.Task[None]] = {}
        rank = 1
        for member in members:
            joins[member.record.worker_id] = asyncio.create_task(join(member, rank))
            rank += member.record.num_weight_ranks
        # One that cannot join keeps all the others waiting, so the first failure ends the attempt.
        await asyncio.wait(joins.values(), return_when=asyncio.FIRST_EXCEPTION)
        failures = await _collect(joins)
        if not failures:
            self._group = members
        return failures

    async def _transfer(
        self, version: WeightVersion, members: list[Member], report: PublishReport
    ) -> dict[str, ShoalError]:
        """Broadcasts over the current group; returns who did not load, and why."""
        loads = {member.record.worker_id: _Load(member, self._epoch, version, self._canary) for member in members}
        tasks = {
            worker_id: asyncio.create_task(load.run(self._config.ready_timeout_s + self._config.timeout_s))
            for worker_id, load in loads.items()
        }
        try:
            if failures := await self._await_ready(loads, tasks):
                return failures
            broadcast = asyncio.create_task(self._learner.publish_weights(self._epoch, self._canary))
            failure = asyncio.create_task(_first_failure(tasks.values()))
            await asyncio.wait([broadcast, failure], return_when=asyncio.FIRST_COMPLETED)
            if not broadcast.done():
                # A member is gone. The rest of its group finds out by itself, or by the next epoch's abort.
                await asyncio.wait([broadcast], timeout=1.0)
                broadcast.cancel()
                return await self._blame(tasks, None)
            failure.cancel()
            try:
                sent = broadcast.result()
            except (Unavailable, DeadlineExceeded) as error:
                return await self._blame(tasks, error)
            await asyncio.wait(tasks.values(), timeout=self._config.timeout_s)
            return await self._check(loads, tasks, sent, report)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _await_ready(
        self, loads: dict[str, "_Load"], tasks: dict[str, asyncio.Task[None]]
    ) -> dict[str, ShoalError]:
        """Waits until all are ready to receive; returns the laggards and those that failed."""

        async def everybody() -> None:
            for load in loads.values():
                await load.ready.wait()

        waits = [asyncio.create_task(everybody()), asyncio.create_task(_first_failure(tasks.values()))]
        await asyncio.wait(waits, timeout=self._config.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        failures = _failures(tasks)
        if not failures:
            for worker_id, load in loads.items():
                if not load.ready.is_set():
                    failures[worker_id] = DeadlineExceeded(
                        f"not ready to receive within weights.ready_timeout_s ({self._config.ready_timeout_s:g} s)"
                    )
        return failures

    async def _blame(self, tasks: dict[str, asyncio.Task[None]], error: ShoalError | None) -> dict[str, ShoalError]:
        """Says why each member of a broken broadcast did not load. None of them did: it went to all or to none."""
        # Generators notice a broken collective within moments; those that do not are cut by the next epoch.
        await asyncio.wait(tasks.values(), timeout=1.0)
        failures = _failures(tasks)
        fallback = error or Unavailable("the broadcast broke off")
        return {worker_id: failures.get(worker_id, fallback) for worker_id in tasks}

    async def _check(
        self,
        loads: dict[str, "_Load"],
        tasks: dict[str, asyncio.Task[None]],
        sent: learner_pb2.PublishWeightsResponse,
        report: PublishReport,
    ) -> dict[str, ShoalError]:
        """Compares what generators hold with what was sent; returns who does not hold it."""
        failures = _failures(tasks)
        expected = {entry.name: entry.xxh3 for entry in sent.hashes}
        report.broadcast_s, report.num_bytes = sent.broadcast_s, sent.num_bytes
        for worker_id, load in loads.items():
            if worker_id in failures:
                continue
            if load.done is None:
                failures[worker_id] = DeadlineExceeded(
                    f"not loaded within weights.timeout_s ({self._config.timeout_s:g} s)"
                )
                continue
            received = {entry.name: entry.xxh3 for entry in load.done.hashes}
            names = sorted(expected.keys() | received.keys())
            differing = [name for name in names if expected.get(name) != received.get(name)]
            gap = _mean_gap(sent.canary, load.done.canary)
            if differing:
                failures[worker_id] = DataLoss(
                    f"{len(differing)} of {len(expected)} tensors arrived changed, the first is {differing[0]}",
                    reason="WEIGHTS_CORRUPT",
                )
            elif not gap <= self._config.canary_tolerance:
                failures[worker_id] = DataLoss(
                    f"the canary's log-probabilities differ from the learner's by {gap:.3g} on average, more than "
                    f"weights.canary_tolerance ({self._config.canary_tolerance:g})",
                    reason="CANARY_DIFFERS",
                )
            else:
                load.member.serving = True
                load.member.version = report.version
                self._verified[worker_id] = report.version
                report.loaded.append(load.member.name)
                report.pause_s = max(report.pause_s, load.done.pause_s)
                report.canary_gap = max(report.canary_gap, gap)
        return failures

    async def pause(self) -> None:
        """Stops sampling on every generator."""
        async with self.lock:
            await self._everywhere("PauseGeneration", generator_pb2.PauseGenerationRequest())

    async def resume(self) -> None:
        """Lets every generator that serves sample again."""
        async with self.lock:
            await self._everywhere("ResumeGeneration", generator_pb2.ResumeGenerationRequest())

    async def sleep(self) -> None:
        """Has every generator give its GPU's memory back, until the next publish or `wake`."""
        async with self.lock:
            await self._everywhere("Sleep", generator_pb2.SleepRequest())

    async def wake(self) -> None:
        """Ends `sleep` where no publish does."""
        async with self.lock:
            await self._everywhere("Wake", generator_pb2.WakeRequest())

    async def _everywhere(self, method: str, request: object) -> None:
        async def call(member: Member) -> None:
            try:
                await getattr(member.stub, method)(request, timeout=CONTROL_TIMEOUT_S)
            except ShoalError as error:
                await self._fleet.lost(member, error)

        await asyncio.gather(*(call(member) for member in self._fleet.generators if member.serving))


class _Load:
    """One generator's `LoadWeights` call."""

    def __init__(self, member: Member, epoch: int, version: WeightVersion, canary: weights_pb2.Canary) -> None:
        self.member = member
        self.ready = asyncio.Event()
        self.done: generator_pb2.LoadWeightsResponse | None = None
        self._request = generator_pb2.LoadWeightsRequest(epoch=epoch, version=version_to_wire(version), canary=canary)

    async def run(self, timeout_s: float) -> None:
        async for response in self.member.stub.LoadWeights(self._request, timeout=timeout_s):
            if response.stage == generator_pb2.LOAD_STAGE_READY:
                self.ready.set()
            elif response.stage == generator_pb2.LOAD_STAGE_DONE:
                self.done = response
        if self.done is None:
            raise Unavailable("the load ended without being done")


async def _first_failure(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Returns as soon as one task has failed; never, if none does."""
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if any(not task.cancelled() and task.exception() for task in done):
            return
    await asyncio.Event().wait()


def _failures(tasks: dict[str, asyncio.Task[None]]) -> dict[str, ShoalError]:
    """The errors of the tasks that have failed. Anything but a ShoalError is a defect and is raised."""
    failures: dict[str, ShoalError] = {}
    for worker_id, task in tasks.items():
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, ShoalError):
                raise error
            failures[worker_id] = error
    return failures


async def _collect(tasks: dict[str, asyncio.Task[None]]) -> dict[str, ShoalError]:
    """Ends the tasks that are still running, and returns the errors of those that had failed."""
    failures = _failures(tasks)
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    return failures


def _mean_gap(sent: weights_pb2.Canary, received: weights_pb2.Canary) -> float:
    learner = float32_from_wire(sent.logprobs, "canary.logprobs")
    engine = float32_from_wire(received.logprobs, "canary.logprobs")
    if learner.shape != engine.shape or not len(learner):
        return float("inf")
    return float(np.abs(learner - engine).mean())
