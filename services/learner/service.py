"""LearnerService over gRPC: wire in, a command to the ranks, wire out. No torch work happens in this thread."""

import asyncio
import logging
import math
import os
import re
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, TypeVar

import grpc

from services.learner.learner import StepResult
from services.learner.publish import WeightPublisher
from services.learner.rank import LearnerRank
from services.learner.ranks import Command, join_messages
from services.learner.torch_thread import TorchThread
from shoal.config import RunConfig, parse_config
from shoal.config.load import config_digest
from shoal.errors import FailedPrecondition, ShoalError, Unavailable
from shoal.rollout import TrainBatch, WeightVersion
from shoal.telemetry import names, trace
from shoal.v1 import learner_pb2, weights_pb2, worker_pb2
from shoal.v1.learner_pb2_grpc import LearnerServiceServicer, add_LearnerServiceServicer_to_server
from shoal.weights.manifest import hashes_to_wire
from shoal.wire import batch_from_wire, float32_to_wire, int32_from_wire, invalid, version_to_wire
from shoal.worker.renewal import Renewal

_log = logging.getLogger(__name__)

_NUM_RESULTS_KEPT = 4
"""Train steps whose result a repeat still gets."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_STOP_S = 5.0

_T = TypeVar("_T")


class LearnerService(LearnerServiceServicer):
    """Rank 0 of a learner. All methods belong to one event loop, except where they say otherwise."""

    kind: worker_pb2.WorkerKind.ValueType = worker_pb2.WORKER_KIND_LEARNER
    full_name = "shoal.v1.LearnerService"
    num_weight_ranks = 0

    def __init__(
        self,
        make_rank: Callable[[], LearnerRank],
        find_host: Callable[[], str],
        *,
        num_ranks: int = 1,
        follower_pids: Sequence[int] = (),
        renewal: Renewal | None = None,
    ) -> None:
        """`make_rank` makes this process's rank once the others have come; it runs in the torch thread.

        `find_host` says under which host generators reach this process; it may block. Without `renewal` it serves
        one run.
        """
        self.add_to_server: Callable[[Any, grpc.aio.Server], None] = add_LearnerServiceServicer_to_server
        self._find_host = find_host
        self._num_ranks = num_ranks
        self._pids = [os.getpid(), *follower_pids]
        self._renewal = renewal
        self._torch = TorchThread(make_rank, self.fail)
        self._rank: LearnerRank | None = None
        self._publisher: WeightPublisher | None = None
        self._state: worker_pb2.WorkerState.ValueType = worker_pb2.WORKER_STATE_IDLE
        self._message = ""
        self._run_id = ""
        self._digest = ""
        self._loading: asyncio.Task[None] | None = None
        self._version: WeightVersion | None = None
        self._num_optimizer_steps = 0
        self._steps: OrderedDict[str, Future[StepResult]] = OrderedDict()
        self._is_ending = False
        self._ending = threading.Lock()
        self._torch.start()

    def status(self) -> worker_pb2.WorkerStatus:
        """State and load, counted in commands."""
        num_open = self._torch.num_open
        return worker_pb2.WorkerStatus(
            state=self._state,
            message=self._message,
            run_id=self._run_id,
            config_digest=self._digest,
            load=worker_pb2.WorkerLoad(num_running=min(1, num_open), num_waiting=max(0, num_open - 1), capacity=1),
        )

    def fail(self, reason: str) -> None:
        """The learner cannot go on: says so and ends the process. From any thread; the first reason stands."""
        with self._ending:
            if self._is_ending:
                return
            self._is_ending = True
        self._state, self._message = worker_pb2.WORKER_STATE_FAILED, reason
        _log.critical("learner ends", extra={"reason": reason})
        # Once: a second signal may find the process past the point where it handles them.
        os.kill(os.getpid(), signal.SIGTERM)

    async def close(self) -> None:
        """Lets all ranks leave. Afterwards this process may only end."""
        with self._ending:
            # What breaks from here on is no longer news.
            self._is_ending = True
        if self._loading is not None:
            self._loading.cancel()
        if self._publisher is not None:
            self._publisher.close()
        if not await asyncio.to_thread(self._torch.close, _STOP_S):
            _log.warning("a command is still running; it is given up")

    async def Configure(
        self, request: learner_pb2.LearnerServiceConfigureRequest, context: Any
    ) -> learner_pb2.LearnerServiceConfigureResponse:
        config = parse_config(request.config)
        _check_name(request.run_id, "run_id")
        digest = config_digest(config)
        # What could not be loaded leaves nothing behind: another configuration may be tried.
        is_free = self._state in (worker_pb2.WORKER_STATE_IDLE, worker_pb2.WORKER_STATE_FAILED) and not self._is_ending
        if is_free:
            self._run_id, self._digest = request.run_id, digest
            self._state, self._message = worker_pb2.WORKER_STATE_LOADING, "loading the model"
            self._loading = asyncio.create_task(self._load(request, config))
        elif self._is_renewing or (request.run_id, digest) != (self._run_id, self._digest):
            raise self._make_room(request.run_id)
        return learner_pb2.LearnerServiceConfigureResponse(status=self.status())

    @property
    def _is_renewing(self) -> bool:
        return self._renewal is not None and self._renewal.is_due

    def _make_room(self, run_id: str) -> ShoalError:
        """Has the process start over for another run, if it can; the answer in any case.

        The coordinator drives one run at a time: the one that the learner holds is over.
        """
        holds = f"the learner holds another configuration than that of run {run_id}, of run {self._run_id}"
        with self._ending:
            if self._is_ending and not self._is_renewing:
                return Unavailable(f"the learner is ending: {self._message}", reason="ENDING")
            # What breaks from here on is no longer news.
            self._is_ending = self._renewal is not None
        if self._renewal is not None:
            return self._renewal.begin(holds)
        return FailedPrecondition(
            f"{holds}; restart its processes to change it, or start them by torchrun with --max-restarts, which then "
            "does so",
            reason="OTHER_CONFIGURATION",
            metadata={"run_id": self._run_id},
        )

    async def _load(self, request: learner_pb2.LearnerServiceConfigureRequest, config: RunConfig) -> None:
        def configure(rank: LearnerRank) -> LearnerRank:
            rank.configure(request.run_id, config)
            return rank

        try:
            host = await asyncio.to_thread(self._find_host)
            rank = await self._run(Command.CONFIGURE, request.SerializeToString(), configure)
            self._publisher = await asyncio.to_thread(
                WeightPublisher, config, run_id=request.run_id, host=host, device=rank.ranks.device
            )
        except ShoalError as error:
            _log.error("model not loaded", extra={"error": error.message})
            self._state, self._message = worker_pb2.WORKER_STATE_FAILED, error.message
        else:
            self._rank = rank
            self._follow_learner(rank)
            self._state, self._message = worker_pb2.WORKER_STATE_READY, ""

    def _run(
        self,
        command: Command,
        body: bytes,
        work: Callable[[LearnerRank], _T],
        check: Callable[[LearnerRank], None] = lambda rank: None,
    ) -> "asyncio.Future[_T]":
        return asyncio.wrap_future(self._torch.submit(command, body, work, check=check))

    def _follow_learner(self, rank: LearnerRank) -> None:
        """Takes over what GetStatus tells. From any thread."""
        self._version, self._num_optimizer_steps = rank.learner.version, rank.learner.num_optimizer_steps

    def _require_ready(self) -> tuple[LearnerRank, WeightPublisher]:
        if self._rank is None or self._publisher is None:
            state = worker_pb2.WorkerState.Name(self._state).removeprefix("WORKER_STATE_")
            raise FailedPrecondition(
                f"the learner is {state}, not READY{': ' if self._message else ''}{self._message}", reason="NOT_READY"
            )
        return self._rank, self._publisher

    async def TrainStep(
        self, request_iterator: AsyncIterator[learner_pb2.TrainStepRequest], context: Any
    ) -> learner_pb2.TrainStepResponse:
        messages = [message async for message in request_iterator]
        # Only here has the client half-closed the stream. A step that begins now does not end with the call.
        self._require_ready()
        batch, body = await asyncio.to_thread(_read_batch, messages)
        future = self._steps.get(batch.train_step_id)
        if future is None or (future.done() and future.exception() is not None):
            future = self._begin_step(batch, body)
        result = await asyncio.shield(asyncio.wrap_future(future))
        return learner_pb2.TrainStepResponse(
            applied=result.applied,
            skip_reason=result.skip_reason,
            version=version_to_wire(result.version),
            num_optimizer_steps=result.num_optimizer_steps,
            metrics=result.metrics,
        )

    def _begin_step(self, batch: TrainBatch, body: bytes) -> "Future[StepResult]":
        def check(rank: LearnerRank) -> None:
            version = rank.learner.version
            if version != batch.expected_version:
                raise FailedPrecondition(
                    f"step {batch.train_step_id} was built for version {batch.expected_version}; the learner is at "
                    f"{version}",
                    reason="VERSION_MISMATCH",
                    metadata={"version": str(version)},
                )

        def step(rank: LearnerRank) -> StepResult:
            with ExitStack() as spans:
                for group in batch.groups:
                    span = trace.span(
                        names.TRAIN_STEP,
                        parent=group.traceparent,
                        group_id=group.group_id,
                        policy_version=batch.expected_version.policy_version,
                    )
                    spans.enter_context(span)
                result = rank.train_step(batch)
            self._follow_learner(rank)
            return result

        future = self._torch.submit(Command.TRAIN_STEP, body, step, check=check)
        self._steps[batch.train_step_id] = future
        while len(self._steps) > _NUM_RESULTS_KEPT:
            self._steps.popitem(last=False)
        return future

    async def ComputeLogprobs(
        self, request: learner_pb2.ComputeLogprobsRequest, context: Any
    ) -> learner_pb2.ComputeLogprobsResponse:
        self._require_ready()
        if not 0 < request.temperature < math.inf:
            raise invalid("temperature", f"must be above 0, and finite (given: {request.temperature})")

        if request.model not in (learner_pb2.MODEL_UNSPECIFIED, learner_pb2.MODEL_POLICY, learner_pb2.MODEL_REFERENCE):
            raise invalid("model", f"must be MODEL_POLICY or MODEL_REFERENCE (given: {request.model})")

        def check(rank: LearnerRank) -> None:
            if request.model == learner_pb2.MODEL_REFERENCE:
                rank.learner.require_reference()
            for index, data in enumerate(request.token_ids):
                rank.learner.check_sequence(int32_from_wire(data, f"token_ids[{index}]"), f"token_ids[{index}]")

        def work(rank: LearnerRank) -> learner_pb2.ComputeLogprobsResponse:
            logprobs = rank.compute_logprobs(request)
            version = version_to_wire(rank.learner.version)
            return learner_pb2.ComputeLogprobsResponse(logprobs=map(float32_to_wire, logprobs), version=version)

        return await self._run(Command.COMPUTE_LOGPROBS, request.SerializeToString(), work, check)

    async def CreateWeightGroup(
        self, request: learner_pb2.CreateWeightGroupRequest, context: Any
    ) -> learner_pb2.CreateWeightGroupResponse:
        rank, publisher = self._require_ready()
        if request.epoch < 1:
            raise invalid("epoch", f"must be at least 1 (given: {request.epoch})")
        if request.world_size < 1:
            raise invalid("world_size", f"must be at least 1, for the learner itself (given: {request.world_size})")
        # Not a command: it has to get through while a broadcast hangs.
        rendezvous = await asyncio.to_thread(publisher.create_group, request.epoch, request.world_size)
        return learner_pb2.CreateWeightGroupResponse(rendezvous=rendezvous.to_wire(), manifest=rank.manifest.to_wire())

    async def PublishWeights(
        self, request: learner_pb2.PublishWeightsRequest, context: Any
    ) -> learner_pb2.PublishWeightsResponse:
        _, publisher = self._require_ready()
        canary = request.canary.token_ids

        def check(rank: LearnerRank) -> None:
            if canary:
                rank.learner.check_sequence(int32_from_wire(canary, "canary.token_ids"), "canary.token_ids")
            publisher.connected(request.epoch).result(timeout=0)

        def work(rank: LearnerRank) -> learner_pb2.PublishWeightsResponse:
            started = time.monotonic()
            sent = rank.publish_weights(request, publisher)
            return learner_pb2.PublishWeightsResponse(
                version=version_to_wire(rank.learner.version),
                hashes=hashes_to_wire(sent.hashes),
                canary=weights_pb2.Canary(
                    token_ids=canary,
                    logprobs=b"" if sent.canary_logprobs is None else float32_to_wire(sent.canary_logprobs),
                ),
                num_bytes=rank.manifest.num_bytes,
                broadcast_s=sent.finished - started,
            )

        # Before it is a command: other commands need not wait for members that are late.
        await asyncio.shield(asyncio.wrap_future(publisher.connected(request.epoch)))
        return await self._run(Command.PUBLISH_WEIGHTS, request.SerializeToString(), work, check)

    async def SaveCheckpoint(
        self, request: learner_pb2.LearnerServiceSaveCheckpointRequest, context: Any
    ) -> learner_pb2.LearnerServiceSaveCheckpointResponse:
        self._require_ready()
        _check_name(request.checkpoint_id, "checkpoint_id")

        def work(rank: LearnerRank) -> learner_pb2.LearnerServiceSaveCheckpointResponse:
            files = rank.save_checkpoint(request)
            return learner_pb2.LearnerServiceSaveCheckpointResponse(
                version=version_to_wire(rank.learner.version),
                num_ranks=self._num_ranks,
                files=[
                    learner_pb2.FileDigest(path=file.path, num_bytes=file.num_bytes, sha256=file.sha256)
                    for file in files
                ],
            )

        # Storage that is half written helps nobody: the command runs to its end without its caller, too.
        return await asyncio.shield(self._run(Command.SAVE_CHECKPOINT, request.SerializeToString(), work))

    async def LoadCheckpoint(
        self, request: learner_pb2.LoadCheckpointRequest, context: Any
    ) -> learner_pb2.LoadCheckpointResponse:
        self._require_ready()
        if request.checkpoint_id:
            _check_name(request.checkpoint_id, "checkpoint_id")

        def check(rank: LearnerRank) -> None:
            if request.attempt < rank.learner.version.attempt:
                raise invalid(
                    "attempt",
                    f"must not be below {rank.learner.version.attempt}, the present (given: {request.attempt})",
                )

        def work(rank: LearnerRank) -> learner_pb2.LoadCheckpointResponse:
            version = rank.load_checkpoint(request)
            self._follow_learner(rank)
            return learner_pb2.LoadCheckpointResponse(version=version_to_wire(version))

        loading = self._run(Command.LOAD_CHECKPOINT, request.SerializeToString(), work, check)
        # Steps of the attempt that ends here mean nothing in the next.
        self._steps.clear()
        return await asyncio.shield(loading)

    async def ExportModel(
        self, request: learner_pb2.ExportModelRequest, context: Any
    ) -> learner_pb2.ExportModelResponse:
        self._require_ready()

        def work(rank: LearnerRank) -> learner_pb2.ExportModelResponse:
            path = rank.export_model()
            return learner_pb2.ExportModelResponse(path=str(path), version=version_to_wire(rank.learner.version))

        return await asyncio.shield(self._run(Command.EXPORT_MODEL, request.SerializeToString(), work))

    async def GetStatus(
        self, request: learner_pb2.LearnerServiceGetStatusRequest, context: Any
    ) -> learner_pb2.LearnerServiceGetStatusResponse:
        version = self._version
        return learner_pb2.LearnerServiceGetStatusResponse(
            status=self.status(),
            version=None if version is None else version_to_wire(version),
            num_ranks=self._num_ranks,
            num_optimizer_steps=self._num_optimizer_steps,
            rank_pids=self._pids,
        )


def _read_batch(messages: Sequence[learner_pb2.TrainStepRequest]) -> tuple[TrainBatch, bytes]:
    """The batch, and the same for the other ranks."""
    return batch_from_wire(messages), join_messages(messages)


def _check_name(name: str, field: str) -> None:
    """Names become folders: nothing in them may lead elsewhere."""
    if not _NAME.fullmatch(name):
        raise invalid(
            field,
            f"use 1 to 128 letters, digits, '.', '_' and '-', beginning with a letter or a digit (given: {name!r})",
        )
