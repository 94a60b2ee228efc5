"""LearnerService over gRPC: each rpc becomes a command for the ranks. No torch work happens in this thread."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import grpc

from services.learner.checkpoint_saves import CheckpointSaves
from services.learner.commands import LearnerCommands
from services.learner.departure import Departure
from services.learner.learner import StepResult
from services.learner.once import Once
from services.learner.profiles import Profiles
from services.learner.publish import canary_dtype
from services.learner.ranks.beats import SILENT_S, until_silent
from services.learner.ranks.process_group import Command
from services.learner.request_checks import (
    check_logprobs,
    check_name,
    check_run,
    check_weight_group,
    receive_step,
    take_all,
)
from services.learner.served_run import ServedRun
from services.learner.torch_thread import TorchThread
from shoal.config import parse_config
from shoal.config.derived import max_step_bytes
from shoal.errors import ShoalError
from shoal.rollout import TrainBatch, WeightVersion
from shoal.telemetry import names, trace
from shoal.v1 import learner_pb2, weights_pb2, worker_pb2
from shoal.v1.learner_pb2_grpc import LearnerServiceServicer, add_LearnerServiceServicer_to_server
from shoal.weights.manifest import hashes_to_wire
from shoal.wire import batch_from_wire, float32_to_wire, int32_from_wire, version_to_wire
from shoal.worker.lifecycle import Lifecycle
from shoal.worker.reexec import Reexec

_log = logging.getLogger(__name__)

_STOP_S = 5.0


class LearnerService(LearnerServiceServicer):
    """The service of rank 0. All methods belong to one event loop, unless their docstring names another thread."""

    kind: worker_pb2.WorkerKind.ValueType = worker_pb2.WORKER_KIND_LEARNER
    full_name = "shoal.v1.LearnerService"
    num_weight_ranks = 0

    def __init__(
        self,
        make_commands: Callable[[], LearnerCommands],
        find_host: Callable[[], str],
        *,
        interface: str | None = None,
        num_ranks: int = 1,
        follower_pids: Sequence[int] = (),
        explain: Callable[[str], str] = str,
        reexec: Reexec | None = None,
        grace_s: float = 60.0,
    ) -> None:
        """`make_commands` joins the process group; it runs in the torch thread, and blocks until all ranks have joined.

        `find_host` returns the host at which generators reach this process, and may block. The weight plane listens on
        `interface`, or on every interface if `interface` is None. `explain` is passed to the torch thread, and
        `grace_s` is passed to the departure. Without `reexec` the process serves only one run.
        """
        self.add_to_server: Callable[[Any, grpc.aio.Server], None] = add_LearnerServiceServicer_to_server
        self.num_ranks = num_ranks
        self._pids = [os.getpid(), *follower_pids]
        self._lifecycle = Lifecycle("the learner", reexec)
        self._torch = TorchThread(make_commands, self.fail, explain)
        self._served = ServedRun(self._lifecycle, self._torch, find_host, interface)
        self._steps = Once[StepResult]()
        self.departure = Departure(self._lifecycle, self._torch, grace_s=grace_s)
        self._saves = CheckpointSaves(self._served, self._lifecycle, self.departure)
        self._profiles = Profiles(self._served, self._torch)
        self._torch.start()

    def status(self) -> worker_pb2.WorkerStatus:
        """Returns the worker's state, and its load as a number of commands."""
        num_open = self._torch.num_open
        return self._lifecycle.status(
            worker_pb2.WorkerLoad(num_running=min(1, num_open), num_waiting=max(0, num_open - 1), capacity=1)
        )

    def fail(self, reason: str) -> None:
        """Ends the process as FAILED: the learner cannot continue. The first reason counts. Any thread may call it."""
        self._lifecycle.fail(reason)

    async def watch_beats(self) -> None:
        """Ends the process when another rank is stopped. Otherwise a command without deadline would wait forever."""
        try:
            joined = self._torch.submit(Command.IDLE, b"", lambda commands: commands.process_group)
            process_group = await asyncio.wrap_future(joined)
        except ShoalError:
            return  # The ranks did not all join, which ends the process.
        rank = await until_silent(process_group)
        self.fail(
            f"the learner hangs: rank {rank} gave no sign of life for {SILENT_S:.0f} s: its process or machine stopped"
        )

    async def close(self) -> None:
        """Lets all ranks leave. Afterwards the process can only end."""
        await self._lifecycle.close()
        self._served.close()
        if not await asyncio.to_thread(self._torch.close, _STOP_S, restarts=self._lifecycle.restarts_by_launcher):
            _log.warning("a command is still running; it is abandoned")

    async def Configure(
        self, request: learner_pb2.LearnerServiceConfigureRequest, context: Any
    ) -> learner_pb2.LearnerServiceConfigureResponse:
        self._served.configure(request)
        return learner_pb2.LearnerServiceConfigureResponse(status=self.status())

    async def HandOverGroup(
        self, request_iterator: AsyncIterator[learner_pb2.HandOverGroupRequest], context: Any
    ) -> learner_pb2.HandOverGroupResponse:
        commands, _ = self._served.require_ready()
        await self._served.held_groups.receive(request_iterator, max_step_bytes(commands.learner.config))
        return learner_pb2.HandOverGroupResponse()

    async def TrainStep(
        self, request_iterator: AsyncIterator[learner_pb2.TrainStepRequest], context: Any
    ) -> learner_pb2.TrainStepResponse:
        commands, _ = self._served.require_ready()  # Check before keeping anything of the batch.
        messages = await receive_step(request_iterator, commands.learner.config)
        # The client has half-closed the stream. From here on the step runs to its end, even if the call is canceled.
        self._served.require_ready()
        # A repeat does not need its groups, some of which may be dropped.
        step = self._steps.find(messages[0].header.train_step_id) if messages else None
        if step is None:
            step = await self._begin_step(messages, context)
        result = await asyncio.shield(step)
        return learner_pb2.TrainStepResponse(
            applied=result.applied,
            skip_reason=result.skip_reason,
            version=version_to_wire(result.version),
            num_optimizer_steps=result.num_optimizer_steps,
            metrics=result.metrics,
        )

    async def _begin_step(
        self, messages: list[learner_pb2.TrainStepRequest], context: Any
    ) -> "asyncio.Future[StepResult]":
        held = self._served.held_groups
        named = held.named_in(messages)
        batch = await asyncio.to_thread(batch_from_wire, take_all(messages), named)
        step = self._steps.begin_once(batch.train_step_id, lambda: self._submit_step(batch, context))
        held.step_begins(batch)
        return step

    def _submit_step(self, batch: TrainBatch, context: Any) -> "asyncio.Future[StepResult]":
        def step(commands: LearnerCommands) -> StepResult:
            self.departure.num_steps += 1
            with step_spans(batch):
                result = commands.train_step(batch)
            self._served.follow(commands)
            return result

        check = partial(LearnerCommands.check_step, batch=batch)
        job = self._torch.submit(Command.TRAIN_STEP, b"", step, check=check, within_s=context.time_remaining())
        return asyncio.wrap_future(job)

    async def ComputeLogprobs(
        self, request: learner_pb2.ComputeLogprobsRequest, context: Any
    ) -> learner_pb2.ComputeLogprobsResponse:
        self._served.require_ready()
        check_logprobs(request)

        def work(commands: LearnerCommands) -> learner_pb2.ComputeLogprobsResponse:
            logprobs = commands.compute_logprobs(request)
            version = version_to_wire(commands.learner.version)
            return learner_pb2.ComputeLogprobsResponse(logprobs=map(float32_to_wire, logprobs), version=version)

        check = partial(LearnerCommands.check_logprobs, request=request)
        return await self._served.run(Command.COMPUTE_LOGPROBS, request, context.time_remaining(), work, check)

    async def SetHyperparameters(
        self, request: learner_pb2.SetHyperparametersRequest, context: Any
    ) -> learner_pb2.SetHyperparametersResponse:
        self._served.require_ready()
        config = parse_config(request.config)
        check_run(request.run_id, self._lifecycle.run_id)

        def work(commands: LearnerCommands) -> WeightVersion:
            commands.set_hyperparameters(config)
            return commands.learner.version

        check = partial(LearnerCommands.check_hyperparameters, config=config)
        version = await self._served.run(Command.SET_HYPERPARAMETERS, request, context.time_remaining(), work, check)
        self._lifecycle.adopt(request.run_id, config)
        return learner_pb2.SetHyperparametersResponse(version=version_to_wire(version))

    async def CreateWeightGroup(
        self, request: learner_pb2.CreateWeightGroupRequest, context: Any
    ) -> learner_pb2.CreateWeightGroupResponse:
        commands, publisher = self._served.require_ready()
        check_weight_group(request)
        # This is not a command, because it must get through while a broadcast hangs.
        rendezvous = await asyncio.to_thread(
            publisher.create_group, request.epoch, request.world_size, commands.manifest.num_bytes
        )
        return learner_pb2.CreateWeightGroupResponse(
            rendezvous=rendezvous.to_wire(), manifest=commands.manifest.to_wire()
        )

    async def PublishWeights(
        self, request: learner_pb2.PublishWeightsRequest, context: Any
    ) -> learner_pb2.PublishWeightsResponse:
        _, publisher = self._served.require_ready()
        canary = request.canary.token_ids

        def check(commands: LearnerCommands) -> None:
            if canary:
                commands.learner.check_sequence(int32_from_wire(canary, "canary.token_ids"), "canary.token_ids")
            publisher.connected(request.epoch).result(timeout=0)

        def work(commands: LearnerCommands) -> learner_pb2.PublishWeightsResponse:
            started = time.monotonic()
            sent = commands.publish_weights(request, publisher)
            return learner_pb2.PublishWeightsResponse(
                version=version_to_wire(commands.learner.version),
                hashes=hashes_to_wire(sent.hashes),
                canary=weights_pb2.Canary(
                    token_ids=canary,
                    logprobs=b"" if sent.canary_logprobs is None else float32_to_wire(sent.canary_logprobs),
                    dtype=canary_dtype(commands.learner.engine.compute_dtype, commands.manifest),
                ),
                num_bytes=commands.manifest.num_bytes,
                broadcast_s=sent.finished - started,
            )

        # Wait here rather than in the command: late members must not delay other commands.
        await asyncio.shield(asyncio.wrap_future(publisher.connected(request.epoch)))
        return await self._served.run(Command.PUBLISH_WEIGHTS, request, context.time_remaining(), work, check)

    async def SaveCheckpoint(
        self, request: learner_pb2.LearnerServiceSaveCheckpointRequest, context: Any
    ) -> learner_pb2.LearnerServiceSaveCheckpointResponse:
        save = await self._saves.write(request, context.time_remaining())
        if request.return_when_written:
            return learner_pb2.LearnerServiceSaveCheckpointResponse(
                version=version_to_wire(save.version), num_ranks=self.num_ranks
            )
        return learner_pb2.LearnerServiceSaveCheckpointResponse(
            version=version_to_wire(save.version),
            num_ranks=self.num_ranks,
            files=[learner_pb2.FileDigest(**asdict(file)) for file in await asyncio.shield(save.finished)],
        )

    async def LoadCheckpoint(
        self, request: learner_pb2.LoadCheckpointRequest, context: Any
    ) -> learner_pb2.LoadCheckpointResponse:
        self._served.require_ready()
        if request.checkpoint_id:
            check_name(request.checkpoint_id, "checkpoint_id")

        def work(commands: LearnerCommands) -> learner_pb2.LoadCheckpointResponse:
            version = commands.load_checkpoint(request, self._lifecycle.progress)
            self.departure.saved(self.departure.num_steps)
            self._served.follow(commands)
            return learner_pb2.LoadCheckpointResponse(version=version_to_wire(version))

        check = partial(LearnerCommands.check_attempt, attempt=request.attempt)
        loading = self._served.run(Command.LOAD_CHECKPOINT, request, context.time_remaining(), work, check)
        # Results of the attempt that ends here must not answer steps of the next attempt.
        self._steps.clear()
        self._served.held_groups.begin_attempt(request.attempt)
        return await asyncio.shield(loading)

    async def ExportModel(
        self, request: learner_pb2.ExportModelRequest, context: Any
    ) -> learner_pb2.ExportModelResponse:
        self._served.require_ready()
        check_name(request.export_name or "model", "export_name")

        def work(commands: LearnerCommands) -> learner_pb2.ExportModelResponse:
            path = commands.export_model(request, self._lifecycle.progress)
            return learner_pb2.ExportModelResponse(path=str(path), version=version_to_wire(commands.learner.version))

        return await asyncio.shield(self._served.run(Command.EXPORT_MODEL, request, context.time_remaining(), work))

    async def Profile(self, request: learner_pb2.ProfileRequest, context: Any) -> learner_pb2.ProfileResponse:
        profile = await self._profiles.record(request)
        return learner_pb2.ProfileResponse(
            paths=map(str, profile.paths),
            first_version=version_to_wire(profile.first_version),
            version=version_to_wire(profile.version),
            is_partial=profile.is_partial,
        )

    async def GetStatus(
        self, request: learner_pb2.LearnerServiceGetStatusRequest, context: Any
    ) -> learner_pb2.LearnerServiceGetStatusResponse:
        version = self._served.version
        return learner_pb2.LearnerServiceGetStatusResponse(
            status=self.status(),
            version=None if version is None else version_to_wire(version),
            num_ranks=self.num_ranks,
            num_optimizer_steps=self._served.num_optimizer_steps,
            rank_pids=self._pids,
        )


@contextmanager
def step_spans(batch: TrainBatch) -> Iterator[None]:
    """Returns a context that adds a span to the trace of each group of a batch."""
    with ExitStack() as spans:
        for group in batch.groups:
            span = trace.span(
                names.TRAIN_STEP,
                parent=group.traceparent,
                group_id=group.group_id,
                policy_version=batch.expected_version.policy_version,
            )
            spans.enter_context(span)
        yield
