"""CoordinatorService: translates rpcs into calls of the runs and the registry, and the results into messages."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from services.coordinator.run.controls import StopMode
from services.coordinator.run.runs import Runs
from services.coordinator.store.rollouts import list_rollouts
from services.coordinator.store.run_folders import describe, list_runs
from services.coordinator.store.run_record import RunRecord
from services.coordinator.workers.ended_processes import check_displaced
from services.coordinator.workers.registry import LEASE_S, Holder, WorkerRecord, WorkerRegistry
from shoal.config import parse_config
from shoal.rpc.auth.callers import current_caller
from shoal.rpc.options import MAX_MESSAGE_BYTES
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import coordinator_pb2_grpc, worker_pb2
from shoal.wire import invalid, version_to_wire

Context = grpc.aio.ServicerContext[Any, Any]

_MAX_SECRET_BYTES = 256
_MAX_MESSAGES_BYTES = MAX_MESSAGE_BYTES // 2


class CoordinatorService(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Serves the runs of a data folder and the registry of workers."""

    def __init__(self, runs: Runs, registry: WorkerRegistry) -> None:
        self._runs = runs
        self._registry = registry

    async def StartRun(self, request: pb.StartRunRequest, context: Context) -> pb.StartRunResponse:
        if not request.resume:
            record = await self._runs.start(parse_config(request.config), request.run_id, queue=request.queue)
        elif not request.run_id:
            raise invalid("run_id", "is required when a run is resumed")
        elif request.queue:
            raise invalid("queue", "cannot be combined with resume: resume the run when no other run is active")
        else:
            record = await self._runs.resume(request.run_id, request.config)
        return pb.StartRunResponse(run=await self._describe(record))

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        return pb.GetRunResponse(run=await self._describe(self._runs.find(request.run_id)))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        return await asyncio.to_thread(list_runs, self._runs.folders, request)

    async def WatchRun(self, request: pb.WatchRunRequest, context: Context) -> AsyncIterator[Any]:
        # Serialized already, once for all watchers.
        async for response in self._runs.watch(request.run_id, request.after_sequence, batches=request.batches):
            yield response

    async def PauseRun(self, request: pb.PauseRunRequest, context: Context) -> pb.PauseRunResponse:
        run = self._runs.active(request.run_id)
        await run.commands.pause()
        return pb.PauseRunResponse(run=await self._describe(run.record))

    async def ResumeRun(self, request: pb.ResumeRunRequest, context: Context) -> pb.ResumeRunResponse:
        run = self._runs.active(request.run_id)
        await run.commands.resume()
        return pb.ResumeRunResponse(run=await self._describe(run.record))

    async def StopRun(self, request: pb.StopRunRequest, context: Context) -> pb.StopRunResponse:
        if (withdrawn := self._runs.withdraw(request.run_id)) is not None:
            return pb.StopRunResponse(run=await self._describe(withdrawn))
        run = self._runs.active(request.run_id)
        await run.commands.stop(StopMode.DRAIN if request.mode == pb.STOP_MODE_DRAIN else StopMode.NOW)
        return pb.StopRunResponse(run=await self._describe(run.record))

    async def SaveCheckpoint(self, request: pb.SaveCheckpointRequest, context: Context) -> pb.SaveCheckpointResponse:
        run = self._runs.active(request.run_id)
        checkpoint_id = await run.commands.save_checkpoint()
        return pb.SaveCheckpointResponse(checkpoint_id=checkpoint_id, policy_version=run.record.policy_version)

    async def Evaluate(self, request: pb.EvaluateRequest, context: Context) -> pb.EvaluateResponse:
        result = await self._runs.active(request.run_id).evaluate()
        return pb.EvaluateResponse(
            version=version_to_wire(result.version),
            num_prompts=len(result.answered),
            num_scored=len(result.scored),
            metrics=result.metrics(),
        )

    async def ProfileRun(self, request: pb.ProfileRunRequest, context: Context) -> pb.ProfileRunResponse:
        within_s = context.time_remaining()
        run = self._runs.active(request.run_id)
        profile = await run.profile(request.num_steps, math.inf if within_s is None else within_s)
        return pb.ProfileRunResponse(
            paths=profile.paths,
            first_step=profile.first_step,
            last_step=profile.last_step,
            is_partial=profile.is_partial,
        )

    async def UpdateRunConfig(self, request: pb.UpdateRunConfigRequest, context: Context) -> pb.UpdateRunConfigResponse:
        run = self._runs.active(request.run_id)
        changes = run.updates.request(request.config, request.update_mask.paths, request.etag)
        described = await self._describe(run.record)
        described.num_steps = run.updates.stored.run.num_steps
        return pb.UpdateRunConfigResponse(run=described, changes=changes)

    async def RegisterWorker(self, request: pb.RegisterWorkerRequest, context: Context) -> pb.RegisterWorkerResponse:
        if len(request.lease_secret) > _MAX_SECRET_BYTES:
            raise invalid("lease_secret", f"must have at most {_MAX_SECRET_BYTES} bytes")
        holder = Holder(current_caller(), request.lease_secret)
        await check_displaced(self._registry, request.worker_id, request.address, holder)
        self._registry.register(request.worker_id, request.kind, request.address, request.num_weight_ranks, holder)
        return pb.RegisterWorkerResponse(lease=_duration(LEASE_S))

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatResponse:
        holder = Holder(current_caller(), request.lease_secret)
        self._registry.heartbeat(request.worker_id, request.status, holder)
        if request.status.state == worker_pb2.WORKER_STATE_LEAVING and not self._runs.is_active:
            # Nobody needs it: the next heartbeat tells it so.
            self._registry.report_lost(request.worker_id, "it was told to end")
        return pb.HeartbeatResponse()

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Context) -> pb.ListWorkersResponse:
        records = self._registry.all()
        # Where there are many, what they say is cut so that all of them fit into a message.
        max_chars = _MAX_MESSAGES_BYTES // 4 // max(1, len(records))
        return pb.ListWorkersResponse(workers=[self._worker_to_wire(record, max_chars) for record in records])

    async def ListRollouts(self, request: pb.ListRolloutsRequest, context: Context) -> pb.ListRolloutsResponse:
        record = self._runs.find(request.run_id)
        return await asyncio.to_thread(list_rollouts, record.folder, request)

    async def _describe(self, record: RunRecord) -> pb.Run:
        return await asyncio.to_thread(describe, record, self._runs.config_of(record))

    def _worker_to_wire(self, record: WorkerRecord, max_chars: int) -> pb.Worker:
        return pb.Worker(
            worker_id=record.worker_id,
            kind=record.kind,
            address=record.address,
            state=worker_pb2.WORKER_STATE_LOST if record.lost else record.status.state,
            load=record.status.load,
            num_weight_ranks=record.num_weight_ranks,
            heartbeat_age=_duration(self._registry.heartbeat_age_s(record)),
            message=(record.loss_reason if record.lost else record.quarantine or record.status.message)[:max_chars],
        )


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(int(seconds * 1e9))
    return duration
