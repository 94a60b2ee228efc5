"""A learner whose weights are the list of the steps that made them."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from services.learner.held_groups import HeldGroups
from services.learner.once import Once
from shoal.config.load import parse_config
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, FailedPrecondition, NotFound, ResourceExhausted
from shoal.rollout import TrainBatch, WeightVersion
from shoal.v1 import learner_pb2, weights_pb2, worker_pb2
from shoal.v1.learner_pb2_grpc import LearnerServiceServicer, add_LearnerServiceServicer_to_server
from shoal.weights.rendezvous import Rendezvous
from shoal.wire import batch_from_wire, int32_from_wire, version_from_wire, version_to_wire
from shoal.worker.lifecycle import Lifecycle
from shoal.worker.reexec import Reexec
from tests.simulation.virtual_time import Process
from tests.simulation.workers.engine import MANIFEST
from tests.simulation.workers.plane import History, Plane, Saved, TrainedGroup, TrainedStep
from tests.simulation.workers.weight_group import WeightGroup, Weights

_BROADCAST_S = 0.2
_FORGETS = 0.1
"""How often the learner does not hold the groups that a step names."""
_MAX_HELD_BYTES = 6_000
"""So few that the learner refuses some groups, which then come with their step."""


@dataclass(frozen=True)
class _Save:
    version: WeightVersion
    finished: "asyncio.Task[learner_pb2.LearnerServiceSaveCheckpointResponse]"


class SimulatedLearner(LearnerServiceServicer):
    """Rank 0 of a learner: commands run one after the other, and to their end."""

    kind = worker_pb2.WORKER_KIND_LEARNER
    full_name = "shoal.v1.LearnerService"
    num_weight_ranks = 0
    add_to_server = staticmethod(add_LearnerServiceServicer_to_server)

    def __init__(self, plane: Plane, process: Process, rng: random.Random, reexec: Reexec) -> None:
        self._plane = plane
        self._process = process
        self._rng = rng
        self._lifecycle = Lifecycle("the learner", reexec)
        self._commands = asyncio.Lock()
        self._version = WeightVersion(0, 0)
        self._history: History = ()
        self._steps = Once[learner_pb2.TrainStepResponse]()
        self._held_groups = HeldGroups()
        self._saves = Once[_Save]()
        self._finishing: asyncio.Task[learner_pb2.LearnerServiceSaveCheckpointResponse] | None = None
        self._group: WeightGroup | None = None
        self._timeout_s = 0.0
        self.has_lost_a_rank = False
        """While it is set, every command hangs in a collective."""

    def status(self) -> worker_pb2.WorkerStatus:
        return self._lifecycle.status(worker_pb2.WorkerLoad(capacity=1))

    async def close(self) -> None:
        await self._lifecycle.close()

    async def _command(
        self, longest_s: float, work: Callable[[], Any], *, after: Callable[[], Awaitable[None]] | None = None
    ) -> Any:
        """Does work once the commands before it, and `after`, are done; canceling the call changes nothing."""

        async def run() -> Any:
            async with self._commands:
                if after is not None:
                    await after()
                await asyncio.sleep(self._rng.random() * longest_s)
                if self.has_lost_a_rank:
                    await asyncio.Event().wait()
                return work()

        return await asyncio.shield(self._process.create_task(run()))

    def _require_ready(self) -> None:
        if self._lifecycle.state != worker_pb2.WORKER_STATE_READY:
            raise self._lifecycle.not_ready()

    async def Configure(self, request: Any, context: Any) -> learner_pb2.LearnerServiceConfigureResponse:
        config = parse_config(request.config)
        if not self._lifecycle.is_configured(request.run_id, config):
            if self._lifecycle.state in (worker_pb2.WORKER_STATE_LOADING, worker_pb2.WORKER_STATE_READY):
                raise self._lifecycle.restart("it has another configuration")
            self._timeout_s = config.weights.timeout_for(0)
            self._lifecycle.load(
                request.run_id, config, lambda: asyncio.sleep(self._rng.random() * 5), message="loading the model"
            )
        return learner_pb2.LearnerServiceConfigureResponse(status=self.status())

    async def GetStatus(self, request: Any, context: Any) -> learner_pb2.LearnerServiceGetStatusResponse:
        return learner_pb2.LearnerServiceGetStatusResponse(
            status=self.status(), version=version_to_wire(self._version), num_ranks=2
        )

    async def HandOverGroup(
        self, request_iterator: AsyncIterator[learner_pb2.HandOverGroupRequest], context: Any
    ) -> learner_pb2.HandOverGroupResponse:
        self._require_ready()
        await self._held_groups.receive(request_iterator, _MAX_HELD_BYTES)
        return learner_pb2.HandOverGroupResponse()

    async def TrainStep(
        self, request_iterator: AsyncIterator[learner_pb2.TrainStepRequest], context: Any
    ) -> learner_pb2.TrainStepResponse:
        messages = [message async for message in request_iterator]
        self._require_ready()
        if (step := self._steps.find(messages[0].header.train_step_id)) is not None:
            return await asyncio.shield(step)
        if self._rng.random() < _FORGETS:
            self._held_groups = HeldGroups()
            self._held_groups.begin_attempt(self._version.attempt)
        batch = batch_from_wire(messages, self._held_groups.named_in(messages))

        def begin() -> "asyncio.Task[learner_pb2.TrainStepResponse]":
            return self._process.create_task(self._command(self._plane.faults.step_s, lambda: self._step(batch)))

        step = self._steps.begin_once(batch.train_step_id, begin)
        self._held_groups.step_begins(batch)
        return await asyncio.shield(step)

    def _step(self, batch: TrainBatch) -> learner_pb2.TrainStepResponse:
        if batch.expected_version != self._version:
            raise FailedPrecondition(
                f"step {batch.train_step_id} was built for version {batch.expected_version}; the learner is at "
                f"{self._version}",
                reason=ErrorReason.VERSION_MISMATCH,
            )
        if self._plane.faults.num_refusals:
            self._plane.faults.num_refusals -= 1
            return learner_pb2.TrainStepResponse(
                skip_reason="the gradient is not finite", version=version_to_wire(self._version)
            )
        groups = tuple(
            TrainedGroup(
                group.group_id,
                min(
                    (span.version for rollout in group.rollouts for span in rollout.completion.version_spans),
                    key=lambda version: (version.attempt, version.policy_version),
                ),
            )
            for group in batch.groups
        )
        self._history += (TrainedStep(self._version, groups),)
        self._plane.num_trained += 1
        self._version = WeightVersion(self._version.attempt, self._version.policy_version + 1)
        return learner_pb2.TrainStepResponse(
            applied=True, version=version_to_wire(self._version), metrics={"lr": 1.0}, num_optimizer_steps=1
        )

    async def SetHyperparameters(self, request: Any, context: Any) -> learner_pb2.SetHyperparametersResponse:
        self._require_ready()
        version = await self._command(0.1, lambda: self._version)
        self._lifecycle.adopt(request.run_id, parse_config(request.config))
        return learner_pb2.SetHyperparametersResponse(version=version_to_wire(version))

    async def CreateWeightGroup(self, request: Any, context: Any) -> learner_pb2.CreateWeightGroupResponse:
        self._require_ready()
        newest = -1 if self._group is None else self._group.epoch
        if request.epoch < newest:
            raise FailedPrecondition(f"epoch {request.epoch} is over", reason=ErrorReason.OLD_EPOCH)
        if request.epoch > newest:
            if self._group is not None:
                self._group.abort(f"epoch {request.epoch} begins")
            if request.epoch in self._plane.groups:
                self._plane.report(f"epoch {request.epoch} was used twice")
            group = WeightGroup(request.epoch, request.world_size, self._timeout_s)
            self._group = self._plane.groups[request.epoch] = group
            self._process.create_task(_meet(group, self._process))
        rendezvous = Rendezvous("run", request.epoch, "host", 1, request.world_size, "gloo", self._timeout_s)
        return learner_pb2.CreateWeightGroupResponse(rendezvous=rendezvous.to_wire(), manifest=MANIFEST.to_wire())

    async def PublishWeights(self, request: Any, context: Any) -> learner_pb2.PublishWeightsResponse:
        self._require_ready()
        group = self._group
        if group is None or group.epoch != request.epoch:
            raise FailedPrecondition(f"epoch {request.epoch} is not current", reason=ErrorReason.NOT_CURRENT_EPOCH)
        await group.join(0, self._process)

        async def work() -> learner_pb2.PublishWeightsResponse:
            async with self._commands:
                if self.has_lost_a_rank:
                    await asyncio.Event().wait()
                weights = Weights(self._version, _digest(self._history, self._version))
                await group.send(weights, self._rng.random() * _BROADCAST_S)
            num_tokens = len(int32_from_wire(request.canary.token_ids, "canary"))
            return learner_pb2.PublishWeightsResponse(
                version=version_to_wire(weights.version),
                hashes=[weights_pb2.TensorHash(name="w", xxh3=weights.digest)],
                canary=weights_pb2.Canary(logprobs=np.full(num_tokens - 1, -1.0, "<f4").tobytes()),
                num_bytes=8,
            )

        return await asyncio.shield(self._process.create_task(work()))

    async def SaveCheckpoint(self, request: Any, context: Any) -> learner_pb2.LearnerServiceSaveCheckpointResponse:
        self._require_ready()

        def write() -> _Save:
            version = version_from_wire(request.expected_version)
            if version != self._version:
                raise FailedPrecondition(
                    f"checkpoint {request.checkpoint_id} is for version {version}; the learner is at {self._version}",
                    reason=ErrorReason.VERSION_MISMATCH,
                )
            self._finishing = self._process.create_task(self._finish(request, self._version, self._history))
            self._finishing.add_done_callback(lambda task: task.cancelled() or task.exception())
            return _Save(version, self._finishing)

        def holds(save: _Save) -> bool:
            if not save.finished.done():
                return True
            if save.finished.exception() is not None:
                return save.version != self._version
            there = self._plane.disk.get(request.checkpoint_id)
            return there is not None and there.sha256 == save.finished.result().files[0].sha256

        command_id = f"{request.checkpoint_id} of {version_from_wire(request.expected_version)}"
        begin = partial(self._command, 1.0, write, after=self._finished)
        save = await asyncio.shield(
            self._saves.begin_once(command_id, lambda: self._process.create_task(begin()), holds)
        )
        if request.return_when_written:
            return learner_pb2.LearnerServiceSaveCheckpointResponse(version=version_to_wire(save.version), num_ranks=2)
        return await asyncio.shield(save.finished)

    async def _finish(
        self, request: Any, version: WeightVersion, history: History
    ) -> learner_pb2.LearnerServiceSaveCheckpointResponse:
        """Brings a checkpoint to disk beside the commands after it. A kill leaves nothing of it."""
        faults, disk = self._plane.faults, self._plane.disk
        await asyncio.sleep(self._rng.random() * faults.finish_s)
        if self.has_lost_a_rank:
            await asyncio.Event().wait()
        if faults.num_full:
            faults.num_full -= 1
            raise ResourceExhausted("the disk is full", reason=ErrorReason.DISK_FULL)
        for name in [name for name in disk if name not in (*request.keep_checkpoint_ids, request.checkpoint_id)]:
            del disk[name]
        sha256 = hashlib.sha256(self._rng.randbytes(8)).hexdigest()
        disk[request.checkpoint_id] = Saved(history, sha256)
        return learner_pb2.LearnerServiceSaveCheckpointResponse(
            version=version_to_wire(version),
            num_ranks=2,
            files=[learner_pb2.FileDigest(path="weights", num_bytes=1, sha256=sha256)],
        )

    async def _finished(self) -> None:
        """Waits until no checkpoint is being brought to disk."""
        if self._finishing is not None:
            await asyncio.wait([self._finishing])

    async def LoadCheckpoint(self, request: Any, context: Any) -> learner_pb2.LoadCheckpointResponse:
        self._require_ready()

        def work() -> learner_pb2.LoadCheckpointResponse:
            if request.attempt < self._version.attempt:
                raise FailedPrecondition(f"attempt {request.attempt} is over: {self._version}")
            history: History = ()
            if request.checkpoint_id:
                saved = self._plane.disk.get(request.checkpoint_id)
                if saved is None:
                    raise NotFound(f"there is no checkpoint {request.checkpoint_id}")
                if saved.sha256 != request.files[0].sha256:
                    raise DataLoss("the digests do not match", reason=ErrorReason.CHECKPOINT_DAMAGED)
                history = saved.history
            self._history = history
            self._version = WeightVersion(request.attempt, len(history))
            return learner_pb2.LoadCheckpointResponse(version=version_to_wire(self._version))

        self._steps.clear()
        self._held_groups.begin_attempt(request.attempt)
        return await self._command(2.0, work, after=self._finished)

    async def ExportModel(self, request: Any, context: Any) -> learner_pb2.ExportModelResponse:
        self._require_ready()

        def work() -> WeightVersion:
            if not request.export_name:
                self._plane.exported = self._history
            return self._version

        version = version_to_wire(await self._command(1.0, work))
        return learner_pb2.ExportModelResponse(path=request.export_name or "model", version=version)


async def _meet(group: WeightGroup, process: Process) -> None:
    try:
        await group.join(0, process)
    except Exception as error:
        group.abort(str(error))


def _digest(history: History, version: WeightVersion) -> str:
    text = f"{version} {[[group.group_id for group in step.groups] for step in history]}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
