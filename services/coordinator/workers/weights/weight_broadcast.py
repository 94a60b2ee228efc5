"""Broadcasts weights: forms the group of an epoch, transfers the weights over it, and checks what was loaded.

Returns failures by worker id instead of raising them, because the publisher handles failed members.
"""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from services.coordinator.workers.learner_client import LearnerClient
from services.coordinator.workers.member import STATUS_TIMEOUT_S, Member
from services.coordinator.workers.weights.canary import Reading, load_error, reading_of
from services.coordinator.workers.weights.fault_finding import Failures, is_of_group, unless_silent
from shoal.config.tables.weights import WeightsConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, DeadlineExceeded, ShoalError, Unavailable
from shoal.rollout import WeightVersion
from shoal.v1 import generator_pb2, learner_pb2, weights_pb2
from shoal.weights.manifest import num_bytes_of
from shoal.wire import version_to_wire

_GRACE_S = 2.0
"""Extra seconds in which a worker that observes a deadline itself can report why it failed."""
_MUCH_SLOWER = 10.0
"""A pass may take this many times as long as the last pass."""


@dataclass(frozen=True)
class CheckedLoad:
    """A load that passed its checks."""

    pause_s: float
    canary: Reading


@dataclass(frozen=True)
class TransferResult:
    """The outcome of a transfer. A member in neither `failures` nor `loaded` did not load because others failed."""

    failures: Failures
    loaded: dict[str, CheckedLoad] = field(default_factory=dict)
    """By worker id."""
    sent: learner_pb2.PublishWeightsResponse | None = None
    """The learner's report; None when the broadcast did not finish."""


@dataclass(frozen=True)
class WeightGroup:
    """The group of an epoch, over which the learner broadcasts."""

    epoch: int
    members: Sequence[Member]
    """The members in rank order."""
    timeout_s: float
    """The deadline of a transfer."""


async def form_group(
    learner: LearnerClient, members: Sequence[Member], epoch: int, config: WeightsConfig
) -> tuple[WeightGroup | None, Failures]:
    """Makes the group of an epoch. If not all members join, returns None and the errors of those that did not."""
    world_size = 1 + sum(member.record.num_weight_ranks for member in members)
    rendezvous, manifest = await learner.create_weight_group(epoch, world_size)
    timeout_s = config.timeout_for(num_bytes_of(manifest))

    async def join(member: Member, rank_offset: int) -> None:
        request = generator_pb2.JoinWeightGroupRequest(
            rendezvous=rendezvous, rank_offset=rank_offset, manifest=manifest
        )
        await member.stub.JoinWeightGroup(request, timeout=timeout_s + _GRACE_S)

    joins: dict[str, asyncio.Task[None]] = {}
    rank = 1
    for member in members:
        joins[member.record.worker_id] = asyncio.create_task(join(member, rank))
        rank += member.record.num_weight_ranks
    # A member that cannot join keeps all the others waiting, so the first failure ends the attempt.
    joining = asyncio.wait(joins.values(), return_when=asyncio.FIRST_EXCEPTION)
    found = await unless_silent(joining, members, config.ready_timeout_s)
    failures = found | _failures(joins)
    await _end(joins)
    return None if failures else WeightGroup(epoch, members, timeout_s), failures


class Transfer:
    """One transfer of the learner's weights over the group of an epoch."""

    def __init__(
        self,
        learner: LearnerClient,
        group: WeightGroup,
        config: WeightsConfig,
        *,
        version: WeightVersion,
        canary: weights_pb2.Canary,
        before: Mapping[str, Reading] = MappingProxyType({}),
        usual_s: float | None = None,
    ) -> None:
        """`before` has the argument `before` of `load_error` for each worker id.

        `usual_s` is the duration of the last pass that all members loaded; None before the first.
        """
        self._learner = learner
        self._group = group
        self._config = config
        self._version = version
        self._canary = canary
        self._before = before
        self._within_s = _patience_s(group, config.ready_timeout_s, usual_s)
        self._rest_s = config.ready_timeout_s if usual_s is None else min(config.ready_timeout_s, usual_s + _GRACE_S)
        """The time for the rest of a broadcast that lost a member, which takes less than a whole pass."""
        self._loads = {member.record.worker_id: _Load(member, group.epoch, version, canary) for member in group.members}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> TransferResult:
        """Waits until all members are ready, broadcasts, waits until all have loaded, and checks their loads."""
        timeout_s = self._config.ready_timeout_s + self._group.timeout_s + _GRACE_S
        self._tasks = {worker_id: asyncio.create_task(load.run(timeout_s)) for worker_id, load in self._loads.items()}
        try:
            if failures := await self._await_ready():
                return TransferResult(failures)
            return await self._broadcast()
        finally:
            await _end(self._tasks)

    async def _await_ready(self) -> Failures:
        """Waits until all members are ready to receive. Returns those that failed or were too slow."""

        async def all_ready() -> None:
            for load in self._loads.values():
                await load.ready.wait()

        # A gather that is canceled reports an exception that was never retrieved; a task does not.
        ready = asyncio.create_task(all_ready())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.ready_timeout_s):
                    await _ended_or_failed(ready, self._tasks.values())
        finally:
            ready.cancel()
        failures = _failures(self._tasks)
        if not failures:
            for worker_id, load in self._loads.items():
                if not load.ready.is_set():
                    failures[worker_id] = DeadlineExceeded(
                        f"it was not ready within weights.ready_timeout_s ({self._config.ready_timeout_s:g} s)"
                    )
        return failures

    async def _broadcast(self) -> TransferResult:
        broadcast = asyncio.create_task(self._learner.publish_weights(self._group.epoch, self._canary, self._within_s))
        found: Failures = {}
        try:
            found = await self._unless_silent(_ended_or_failed(broadcast, self._tasks.values()))
            if not broadcast.done() and not found:
                # A member is gone. If it had received everything by then, the broadcast ends and the others load.
                await asyncio.wait([broadcast], timeout=self._rest_s)
            if not broadcast.done():
                raise Unavailable("the broadcast broke off", reason=ErrorReason.WEIGHT_GROUP_BROKEN)
            sent = broadcast.result()
        except (Unavailable, DeadlineExceeded) as error:
            return TransferResult(await self._broken_broadcast(error, found))
        finally:
            broadcast.cancel()
        if not found:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._within_s):
                    found = await self._unless_silent(_all_ended(self._tasks.values()))
        if found:  # They may have been passing the tensors on to others.
            others = [task for worker_id, task in self._tasks.items() if worker_id not in found]
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.ready_timeout_s):
                    await _all_ended(others)
        return self._check(sent, found)

    async def _unless_silent(self, waiting: Coroutine[Any, Any, None]) -> Failures:
        still_loading = [member for member in self._group.members if not self._tasks[member.record.worker_id].done()]
        return await unless_silent(waiting, still_loading, self._config.ready_timeout_s)

    async def _broken_broadcast(self, error: ShoalError, found: Failures) -> Failures:
        """Returns why each member did not load. No member loaded, since a broadcast reaches all members or none."""
        # Generators notice a broken collective within moments; the next epoch aborts it for those that do not.
        await asyncio.wait(self._tasks.values(), timeout=1.0)
        failures = _failures(self._tasks)
        own = {worker_id: failure for worker_id, failure in failures.items() if not is_of_group(failure)}
        return dict.fromkeys(self._tasks, error) | own | found

    def _check(self, sent: learner_pb2.PublishWeightsResponse, found: Failures) -> TransferResult:
        """Compares the weights and the canary of each member with the learner's. Members in `found` have failed."""
        failures = found | _failures(self._tasks)
        loaded: dict[str, CheckedLoad] = {}
        for worker_id, load in self._loads.items():
            if worker_id in failures:
                continue
            if load.done is None and found:
                failures[worker_id] = Unavailable("the broadcast broke off", reason=ErrorReason.WEIGHT_GROUP_BROKEN)
                continue
            if load.done is None:
                failures[worker_id] = DeadlineExceeded(
                    f"it did not load the weights within {self._within_s:.3g} s (the limit is weights.timeout_s, or "
                    f"{_MUCH_SLOWER:g} times the duration of the last publish if that is shorter)"
                )
                continue
            reading = reading_of(self._version, sent.canary, load.done.canary)
            error = _corruption(sent, load.done) or load_error(
                reading, self._before.get(worker_id), self._config.canary_tolerance
            )
            if error is not None:
                failures[worker_id] = error
            else:
                loaded[worker_id] = CheckedLoad(load.done.pause_s, reading)
        return TransferResult(failures, loaded, sent)


def _patience_s(group: WeightGroup, ready_timeout_s: float, usual_s: float | None) -> float:
    """Returns the time for a broadcast, and for the loads after it.

    A member that hangs although it answers status calls would hold the others for `weights.timeout_s`. So several
    members get little more time than a pass takes, but enough to notice a silent member first. A member that has failed
    gets twice as long for each failure, since it may be slow.
    """
    num_failures = max((member.standing.num_failures for member in group.members), default=0)
    if usual_s is None or (len(group.members) == 1 and not num_failures):
        return group.timeout_s
    least_s = ready_timeout_s + STATUS_TIMEOUT_S + _GRACE_S
    return min(group.timeout_s, max(least_s, _MUCH_SLOWER * usual_s) * 2.0**num_failures)


class _Load:
    """The `LoadWeights` call of one generator."""

    def __init__(self, member: Member, epoch: int, version: WeightVersion, canary: weights_pb2.Canary) -> None:
        self.ready = asyncio.Event()
        self.done: generator_pb2.LoadWeightsResponse | None = None
        self._stub = member.stub
        self._request = generator_pb2.LoadWeightsRequest(epoch=epoch, version=version_to_wire(version), canary=canary)

    async def run(self, timeout_s: float) -> None:
        async for response in self._stub.LoadWeights(self._request, timeout=timeout_s):
            if response.stage == generator_pb2.LOAD_STAGE_READY:
                self.ready.set()
            elif response.stage == generator_pb2.LOAD_STAGE_DONE:
                self.done = response
        if self.done is None:
            raise Unavailable("the generator ended LoadWeights without the stage DONE")


async def _ended_or_failed(work: "asyncio.Future[Any]", tasks: Iterable["asyncio.Task[None]"]) -> None:
    """Returns when the work has ended, or one of the tasks has failed."""
    pending = {work, *tasks}
    while work in pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if any(not task.cancelled() and task.exception() for task in done):
            return


async def _all_ended(tasks: Collection["asyncio.Task[None]"]) -> None:
    if tasks:
        await asyncio.wait(tasks)


def _corruption(sent: learner_pb2.PublishWeightsResponse, done: generator_pb2.LoadWeightsResponse) -> DataLoss | None:
    """Returns an error if tensors arrived changed; else None."""
    differing = differing_tensors(sent.hashes, done.hashes)
    if not differing:
        return None
    return DataLoss(
        f"{len(differing)} of {len(sent.hashes)} tensors differ from what the learner sent, among them {differing[0]}",
        reason=ErrorReason.WEIGHTS_CORRUPT,
    )


def differing_tensors(sent: Iterable[weights_pb2.TensorHash], received: Iterable[weights_pb2.TensorHash]) -> list[str]:
    """Returns the names of the tensors that arrived changed, were not sent, or did not arrive."""
    expected = {entry.name: entry.xxh3 for entry in sent}
    found = {entry.name: entry.xxh3 for entry in received}
    return [name for name in sorted(expected.keys() | found.keys()) if expected.get(name) != found.get(name)]


def _failures(tasks: dict[str, asyncio.Task[None]]) -> Failures:
    """Returns the errors of the tasks that have failed. Raises any that is not a `ShoalError`: it is a defect."""
    failures: Failures = {}
    for worker_id, task in tasks.items():
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, ShoalError):
                raise error
            failures[worker_id] = error
    return failures


async def _end(tasks: dict[str, asyncio.Task[None]]) -> None:
    """Cancels the tasks that are still running, and waits for all."""
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
