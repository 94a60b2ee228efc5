"""GeneratorService over gRPC. The service checks requests, calls the engine and builds responses."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from services.generator.batches import BatchPlace
from services.generator.engine_loader import EngineLoader, Running, StartEngine
from services.generator.group import GroupRequest
from shoal.arrays import Int32Array
from shoal.config.load import parse_config
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.v1 import generator_pb2 as pb
from shoal.v1 import weights_pb2, worker_pb2
from shoal.v1.generator_pb2_grpc import GeneratorServiceServicer, add_GeneratorServiceServicer_to_server
from shoal.weights.manifest import Manifest, hashes_to_wire
from shoal.weights.rendezvous import Rendezvous
from shoal.wire import (
    completion_to_wire,
    detach_support,
    float32_to_wire,
    int32_from_wire,
    invalid,
    parts_to_wire,
    prefixes_from_wire,
    sampling_from_wire,
    version_from_wire,
    version_to_wire,
)
from shoal.worker.reexec import Reexec

Context = grpc.aio.ServicerContext[Any, Any]

_MAX_SEED = 2**53


class GeneratorService(GeneratorServiceServicer):
    """The servicer of a generator. It is a `shoal.worker.membership.WorkerService`."""

    kind: worker_pb2.WorkerKind.ValueType = worker_pb2.WORKER_KIND_GENERATOR
    full_name = "shoal.v1.GeneratorService"

    def __init__(self, start_engine: StartEngine, reexec: Reexec) -> None:
        """`start_engine` starts the engine that a configuration asks for. The start may take minutes."""
        self.add_to_server: Callable[[Any, grpc.aio.Server], None] = add_GeneratorServiceServicer_to_server
        self._loader = EngineLoader(start_engine, reexec)

    @property
    def num_weight_ranks(self) -> int:
        return self._loader.num_weight_ranks

    def status(self) -> worker_pb2.WorkerStatus:
        return self._loader.status()

    async def drain(self, grace_s: float) -> None:
        """Finishes the completions in flight, or returns them to the caller after `grace_s`: the process is to end."""
        await self._loader.drain(grace_s)

    async def close(self) -> None:
        await self._loader.close()

    async def Configure(
        self, request: pb.GeneratorServiceConfigureRequest, context: Context
    ) -> pb.GeneratorServiceConfigureResponse:
        if not request.run_id:
            raise invalid("run_id", "is required")
        self._loader.configure(request.run_id, parse_config(request.config))
        return pb.GeneratorServiceConfigureResponse(status=self.status())

    async def GenerateGroup(
        self, request: pb.GenerateGroupRequest, context: Context
    ) -> AsyncIterator[pb.GenerateGroupResponse]:
        running = self._loader.running
        group = _group_request(request, running)
        if running.weights.is_stale:
            raise FailedPrecondition(
                f"the generator is STALE: {running.weights.stale_reason}", reason=ErrorReason.STALE
            )
        async for update in running.requests.stream(group):
            if update.has_begun and request.report_begin:
                yield pb.GenerateGroupResponse(has_begun=True)
            for parts in parts_to_wire(update.parts):
                yield pb.GenerateGroupResponse(parts=parts)
            for completion in update.completions:
                message = completion_to_wire(completion)
                for part in detach_support(message):
                    yield pb.GenerateGroupResponse(support_token_ids=part)
                prefix = group.prefixes.get(completion.sample_index, ())
                yield pb.GenerateGroupResponse(completion=message, num_prefix_tokens=len(prefix))

    async def JoinWeightGroup(self, request: pb.JoinWeightGroupRequest, context: Context) -> pb.JoinWeightGroupResponse:
        running = self._loader.running
        rendezvous = Rendezvous.from_wire(request.rendezvous)
        highest = rendezvous.world_size - running.engine.num_weight_ranks
        if not 1 <= request.rank_offset <= highest:
            raise invalid(
                "rank_offset",
                f"must be from 1 to {highest}: the generator has {running.engine.num_weight_ranks} of the "
                f"{rendezvous.world_size} ranks (given: {request.rank_offset})",
            )
        await running.weights.join(rendezvous, request.rank_offset, Manifest.from_wire(request.manifest))
        return pb.JoinWeightGroupResponse()

    async def LoadWeights(
        self, request: pb.LoadWeightsRequest, context: Context
    ) -> AsyncIterator[pb.LoadWeightsResponse]:
        running = self._loader.running
        if not request.HasField("version"):
            raise invalid("version", "is required")
        canary = None
        if request.HasField("canary"):
            canary = _scorable(request.canary.token_ids, "canary.token_ids", running)
        async for loaded in running.weights.load(request.epoch, version_from_wire(request.version), canary):
            if loaded is None:
                yield pb.LoadWeightsResponse(stage=pb.LOAD_STAGE_READY)
                continue
            response = pb.LoadWeightsResponse(
                stage=pb.LOAD_STAGE_DONE,
                hashes=hashes_to_wire(loaded.report.hashes),
                pause_s=loaded.pause_s,
                receive_s=loaded.report.receive_s,
                load_s=loaded.report.load_s,
            )
            if loaded.canary_logprobs is not None:
                response.canary.CopyFrom(
                    weights_pb2.Canary(
                        token_ids=request.canary.token_ids,
                        logprobs=float32_to_wire(loaded.canary_logprobs),
                        dtype=running.engine.dtype,
                    )
                )
            yield response

    async def LeaveWeightGroup(
        self, request: pb.LeaveWeightGroupRequest, context: Context
    ) -> pb.LeaveWeightGroupResponse:
        running = self._loader.current
        if running is not None:
            await running.weights.leave()
        return pb.LeaveWeightGroupResponse()

    async def PauseGeneration(self, request: pb.PauseGenerationRequest, context: Context) -> pb.PauseGenerationResponse:
        await self._loader.running.weights.pause()
        return pb.PauseGenerationResponse()

    async def ResumeGeneration(
        self, request: pb.ResumeGenerationRequest, context: Context
    ) -> pb.ResumeGenerationResponse:
        await self._loader.running.weights.resume()
        return pb.ResumeGenerationResponse()

    async def Sleep(self, request: pb.SleepRequest, context: Context) -> pb.SleepResponse:
        await self._loader.running.weights.sleep()
        return pb.SleepResponse()

    async def Wake(self, request: pb.WakeRequest, context: Context) -> pb.WakeResponse:
        await self._loader.running.weights.wake()
        return pb.WakeResponse()

    async def ScoreTokens(self, request: pb.ScoreTokensRequest, context: Context) -> pb.ScoreTokensResponse:
        running = self._loader.running
        version = running.weights.version
        logprobs = await running.weights.score(_scorable(request.token_ids, "token_ids", running))
        return pb.ScoreTokensResponse(
            logprobs=float32_to_wire(logprobs), version=None if version is None else version_to_wire(version)
        )

    async def GetStatus(
        self, request: pb.GeneratorServiceGetStatusRequest, context: Context
    ) -> pb.GeneratorServiceGetStatusResponse:
        response = pb.GeneratorServiceGetStatusResponse(status=self.status(), num_weight_ranks=self.num_weight_ranks)
        running = self._loader.current
        if running is not None:
            response.num_sampled_tokens = running.requests.num_sampled_tokens
            if running.weights.version is not None:
                response.version.CopyFrom(version_to_wire(running.weights.version))
            if running.weights.epoch is not None:
                response.epoch = running.weights.epoch
        return response


def _group_request(request: pb.GenerateGroupRequest, running: Running) -> GroupRequest:
    if not request.request_id:
        raise invalid("request_id", "is required")
    prompt = _token_ids(request.prompt_token_ids, "prompt_token_ids", running)
    if not len(prompt):
        raise invalid("prompt_token_ids", "is empty")
    if not request.seeds:
        raise invalid("seeds", "is empty; give one seed per completion")
    bad = next((seed for seed in request.seeds if not 0 <= seed < _MAX_SEED), None)
    if bad is not None:
        raise invalid("seeds", f"must be from 0 to 2^53 - 1 (given: {bad})")
    sampling = sampling_from_wire(request.sampling)
    longest = running.engine.max_model_len
    if len(prompt) + sampling.max_completion_tokens > longest:
        raise invalid(
            "sampling.max_completion_tokens",
            f"{len(prompt)} prompt tokens and {sampling.max_completion_tokens} completion tokens exceed the engine's "
            f"context of {longest} tokens; lower sampling.max_completion_tokens, or raise generator.max_model_len",
        )
    if request.report_every_tokens < 0:
        raise invalid("report_every_tokens", f"must be at least 0 (given: {request.report_every_tokens})")
    prefixes = prefixes_from_wire(
        request.prefixes, num_completions=len(request.seeds), max_tokens=sampling.max_completion_tokens
    )
    for index, prefix in prefixes.items():
        _check_vocabulary(prefix, f"prefixes of sample {index}", running)
    return GroupRequest(
        request.request_id,
        prompt,
        sampling,
        tuple(request.seeds),
        place=_place(request),
        prefixes=prefixes,
        report_every_tokens=request.report_every_tokens,
    )


def _place(request: pb.GenerateGroupRequest) -> BatchPlace | None:
    if not request.HasField("batch"):
        return None
    batch = request.batch
    if not batch.batch_id:
        raise invalid("batch.batch_id", "is required")
    if not 0 <= batch.index < batch.num_groups:
        raise invalid("batch.index", f"must be from 0 to num_groups - 1 (given: {batch.index} of {batch.num_groups})")
    return BatchPlace(batch.batch_id, batch.index, batch.num_groups)


def _scorable(data: bytes, field: str, running: Running) -> Int32Array:
    token_ids = _token_ids(data, field, running)
    longest = running.engine.max_model_len
    if not 2 <= len(token_ids) <= longest:
        raise invalid(field, f"must have 2 to {longest} tokens (given: {len(token_ids)})")
    return token_ids


def _token_ids(data: bytes, field: str, running: Running) -> Int32Array:
    token_ids = int32_from_wire(data, field)
    _check_vocabulary(token_ids, field, running)
    return token_ids


def _check_vocabulary(token_ids: Int32Array, field: str, running: Running) -> None:
    """Raises `InvalidArgument` for tokens that the vocabulary does not contain, because such tokens kill vLLM."""
    size = running.engine.vocab_size
    outside = token_ids[(token_ids < 0) | (token_ids >= size)]
    if len(outside):
        raise invalid(field, f"must be from 0 to {size - 1} for this model (given: {outside[0]})")
