"""Workers that follow a script, for tests of the coordinator: real gRPC, no engine."""

import asyncio
import contextlib
import hashlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from services.learner.held_groups import HeldGroups
from shoal.config import RunConfig, parse_config
from shoal.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from shoal.rpc.channel import connect
from shoal.rpc.server import RpcServer
from shoal.v1 import (
    coordinator_pb2,
    coordinator_pb2_grpc,
    environment_pb2_grpc,
    generator_pb2,
    generator_pb2_grpc,
    learner_pb2,
    learner_pb2_grpc,
    reward_pb2,
    reward_pb2_grpc,
    rollout_pb2,
    weights_pb2,
    worker_pb2,
)
from shoal.wire import batch_from_wire, batch_to_wire
from tests.support.configs import extended
from tests.support.loopback import ADD_TO_SERVER, COORDINATOR, ENVIRONMENT, GENERATOR, LEARNER, REWARD
from tests.support.tiny_model import byte_level_encoder

ENCODER = byte_level_encoder()
HASHES = [weights_pb2.TensorHash(name="w", xxh3="00")]
CANARY = weights_pb2.Canary(logprobs=np.zeros(3, "<f4").tobytes())
HELD_OUT = {"sources": [{"task": "arithmetic", "task_size": 50, "task_seed": 1}], "num_prompts": 4}
"""The table `[evaluation]` of a run with four questions."""
READY = worker_pb2.WorkerStatus(state=worker_pb2.WORKER_STATE_READY)


@dataclass
class Plane:
    """The learner's version, and an event per epoch that ends its broadcast."""

    attempt: int = 0
    policy_version: int = 0
    epoch: int = 0
    sent: dict[int, asyncio.Event] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    """Epochs whose broadcast fails, because a member died in it."""

    def version(self) -> rollout_pb2.WeightVersion:
        return rollout_pb2.WeightVersion(attempt=self.attempt, policy_version=self.policy_version)


class ScriptedGenerator(generator_pb2_grpc.GeneratorServiceServicer):
    """Answers every prompt with digits; correct with a chance that rises with the version."""

    kind = worker_pb2.WORKER_KIND_GENERATOR

    def __init__(self, plane: Plane, *, delay_s: float = 0.0, holds_from: int | None = None) -> None:
        self.plane = plane
        self.delay_s = delay_s
        self.die_in_load = False
        """Break the connection after READY, as a killed process does."""
        self.corrupt = False
        """Answer DONE with another hash."""
        self.may_be_ready = asyncio.Event()
        """While it is not set, no load gets READY."""
        self.may_be_ready.set()
        self.may_load = asyncio.Event()
        """While it is not set, no load ends, and status calls are answered."""
        self.may_load.set()
        self.stalls_at_join = False
        """Answer no call any more from the first call to join a group on."""
        self.is_stalled = False
        self.may_begin = asyncio.Event()
        """While it is not set, no group gets its first token."""
        self.may_begin.set()
        self.may_sample = asyncio.Event()
        """While it is not set, no completion comes."""
        if holds_from is None:
            self.may_sample.set()
        self.num_completions = 0
        self.num_loads = 0
        self.num_sampling = 0
        """Completions that are asked for and not sent."""
        self.sampling_at_loads: list[int] = []
        """`num_sampling` at the begin of each load."""
        self.holds_from = holds_from
        """Groups from this order number on wait for `may_sample`; None: all do."""
        self.errors: dict[int, Exception] = {}
        """Raised, after the first completion, for the groups with these order numbers."""
        self.killing_group: int | None = None
        """The order number of a group that breaks the connection, as one does that kills the engine."""
        self.requests: list[generator_pb2.GenerateGroupRequest] = []
        """All requests for groups, repeats included."""
        self.sampled: list[str] = []
        """The request id of each completion that came, in order."""
        self.calls: list[str] = []
        """The names of other calls, in order, for tests of that order."""
        self.asked = asyncio.Condition()
        self.server: RpcServer | None = None
        self.loaded = asyncio.Event()
        self.version: rollout_pb2.WeightVersion | None = None
        self.is_paused = False
        self.running = asyncio.Event()
        self.running.set()
        self.status = worker_pb2.WorkerStatus(state=worker_pb2.WORKER_STATE_IDLE)

    async def Configure(self, request: Any, context: Any) -> generator_pb2.GeneratorServiceConfigureResponse:
        self.status.state = worker_pb2.WORKER_STATE_STALE
        return generator_pb2.GeneratorServiceConfigureResponse(status=self.status)

    async def GetStatus(self, request: Any, context: Any) -> generator_pb2.GeneratorServiceGetStatusResponse:
        if self.is_stalled:
            await asyncio.Event().wait()
        return generator_pb2.GeneratorServiceGetStatusResponse(
            status=self.status, version=self.version, num_weight_ranks=1
        )

    async def GenerateGroup(
        self, request: generator_pb2.GenerateGroupRequest, context: Any
    ) -> AsyncIterator[generator_pb2.GenerateGroupResponse]:
        self.requests.append(request)
        async with self.asked:
            self.asked.notify_all()
        order_number = int(request.request_id.split("/")[2]) if "evaluation" not in request.request_id else -1
        is_held = self.holds_from is None or order_number >= self.holds_from
        if order_number == self.killing_group:
            await break_connection(self.server)
        for index, seed in enumerate(request.seeds):
            if not index:
                await self.may_begin.wait()
                if request.report_begin:
                    yield generator_pb2.GenerateGroupResponse(has_begun=True)
            assert self.version is not None
            if index and order_number in self.errors:
                raise self.errors[order_number]
            first = self.version
            self.num_sampling += 1
            try:
                await asyncio.sleep(self.delay_s * random.Random(seed).random())
                if is_held:
                    await self.may_sample.wait()
                await self.running.wait()
            finally:
                self.num_sampling -= 1
            chance = 0.2 + 0.6 * min(self.version.policy_version / 10, 1)
            text = ("1" if random.Random(seed).random() < chance else "0") + "x" * (seed % 5)
            tokens = np.array(ENCODER.encode(text).ids, "<i4")
            self.num_completions += 1
            self.sampled.append(request.request_id)
            yield generator_pb2.GenerateGroupResponse(
                completion=rollout_pb2.Completion(
                    sample_index=index,
                    token_ids=tokens.tobytes(),
                    behavior_logprobs=np.full(len(tokens), -1.0, "<f4").tobytes(),
                    finish_reason=rollout_pb2.FINISH_REASON_STOP,
                    version_spans=[rollout_pb2.VersionSpan(version=first, start=0, end=len(tokens))],
                    seed=seed,
                )
            )

    async def JoinWeightGroup(self, request: Any, context: Any) -> generator_pb2.JoinWeightGroupResponse:
        if self.stalls_at_join:
            self.is_stalled = True
            await asyncio.Event().wait()
        return generator_pb2.JoinWeightGroupResponse()

    async def LoadWeights(
        self, request: generator_pb2.LoadWeightsRequest, context: Any
    ) -> AsyncIterator[generator_pb2.LoadWeightsResponse]:
        self.running.clear()
        self.calls.append("LoadWeights")
        self.sampling_at_loads.append(self.num_sampling)
        self.num_loads += 1
        if self.die_in_load:
            self.plane.broken.add(request.epoch)
            yield generator_pb2.LoadWeightsResponse(stage=generator_pb2.LOAD_STAGE_READY)
            await break_connection(self.server)
        await self.may_be_ready.wait()
        sent = self.plane.sent.setdefault(request.epoch, asyncio.Event())  # Before READY: it may be set at once.
        yield generator_pb2.LoadWeightsResponse(stage=generator_pb2.LOAD_STAGE_READY)
        await sent.wait()
        if request.epoch in self.plane.broken:
            self.status.state = worker_pb2.WORKER_STATE_STALE
            raise Unavailable("a peer went away", reason="WEIGHT_GROUP_BROKEN")
        await self.may_load.wait()
        self.version = request.version
        self.loaded.set()
        self.status.state = worker_pb2.WORKER_STATE_READY
        if not self.is_paused:
            self.running.set()
        hashes = [weights_pb2.TensorHash(name="w", xxh3="ff")] if self.corrupt else HASHES
        yield generator_pb2.LoadWeightsResponse(stage=generator_pb2.LOAD_STAGE_DONE, hashes=hashes, canary=CANARY)

    async def LeaveWeightGroup(self, request: Any, context: Any) -> generator_pb2.LeaveWeightGroupResponse:
        self.calls.append("LeaveWeightGroup")
        return generator_pb2.LeaveWeightGroupResponse()

    async def PauseGeneration(self, request: Any, context: Any) -> generator_pb2.PauseGenerationResponse:
        self.is_paused = True
        self.running.clear()
        return generator_pb2.PauseGenerationResponse()

    async def Sleep(self, request: Any, context: Any) -> generator_pb2.SleepResponse:
        self.calls.append("Sleep")
        return generator_pb2.SleepResponse()

    async def Wake(self, request: Any, context: Any) -> generator_pb2.WakeResponse:
        self.calls.append("Wake")
        return generator_pb2.WakeResponse()

    async def ResumeGeneration(self, request: Any, context: Any) -> generator_pb2.ResumeGenerationResponse:
        self.is_paused = False
        self.running.set()
        return generator_pb2.ResumeGenerationResponse()

    async def ScoreTokens(self, request: Any, context: Any) -> generator_pb2.ScoreTokensResponse:
        return generator_pb2.ScoreTokensResponse(version=self.version)


class ScriptedReward(reward_pb2_grpc.RewardServiceServicer):
    """Rewards completions that begin with "1"; can report instead that its verifiers failed."""

    kind = worker_pb2.WORKER_KIND_REWARD

    def __init__(self, *, constant: float | None = None, failing: bool = False) -> None:
        self.failing = failing
        self.unconfigured = False
        """Refuse to score, as a process does that has just replaced another."""
        self.malformed: set[str] = set()
        """Labels that it reports as malformed."""
        self.checks_no_labels = False
        """Offer no `CheckLabels`, as a service that is not Shoal's may."""
        self.constant = constant
        self.may_score = asyncio.Event()
        """While it is not set, completions of `held_source` wait for their scores."""
        self.held_source = ""
        self.may_score.set()
        self.server: RpcServer | None = None

    async def Configure(self, request: Any, context: Any) -> reward_pb2.RewardServiceConfigureResponse:
        return reward_pb2.RewardServiceConfigureResponse(status=READY)

    async def GetStatus(self, request: Any, context: Any) -> reward_pb2.RewardServiceGetStatusResponse:
        return reward_pb2.RewardServiceGetStatusResponse(status=READY)

    async def CheckLabels(self, request: Any, context: Any) -> reward_pb2.CheckLabelsResponse:
        if self.checks_no_labels:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not here")
        labels = [truth.label.string_value for truth in request.ground_truths]
        problems = [reward_pb2.LabelProblem(index=i, reason="bad") for i, x in enumerate(labels) if x in self.malformed]
        return reward_pb2.CheckLabelsResponse(problems=problems)

    async def ReloadVerifiers(self, request: Any, context: Any) -> reward_pb2.ReloadVerifiersResponse:
        return reward_pb2.ReloadVerifiersResponse()

    async def ListVerifiers(self, request: Any, context: Any) -> reward_pb2.ListVerifiersResponse:
        names = ("gsm8k", "math", "exact_string", "reasoning_gym")
        return reward_pb2.ListVerifiersResponse(verifiers=[reward_pb2.VerifierInfo(name=name) for name in names])

    async def ScoreGroup(
        self, request_iterator: AsyncIterator[reward_pb2.ScoreGroupRequest], context: Any
    ) -> AsyncIterator[reward_pb2.ScoreGroupResponse]:
        if self.unconfigured:
            raise FailedPrecondition("the reward service is not configured", reason="NOT_READY")
        source = ""
        async for request in request_iterator:
            if request.HasField("prompt"):
                source = request.prompt.prompt_id.rpartition(":")[0]
                continue
            if source == self.held_source:
                await self.may_score.wait()
            value = float(request.completion.text.startswith("1")) if self.constant is None else self.constant
            outcome = rollout_pb2.SCORE_OUTCOME_FAILED if self.failing else rollout_pb2.SCORE_OUTCOME_SCORED
            verdict = rollout_pb2.VerifierScore(verifier="gsm8k", outcome=outcome, value=value)
            index = request.completion.sample_index
            score = rollout_pb2.Score(sample_index=index, outcome=outcome, reward=value, verifier_scores=[verdict])
            yield reward_pb2.ScoreGroupResponse(score=score)


class ScriptedLearner(learner_pb2_grpc.LearnerServiceServicer):
    kind = worker_pb2.WORKER_KIND_LEARNER

    def __init__(self, plane: Plane, *, step_s: float = 0.0) -> None:
        self.plane = plane
        self.step_s = step_s
        self.batches: list[list[learner_pb2.TrainStepRequest]] = []
        """The streams of the applied steps, as if they had whole groups."""
        self.step_bytes: list[int] = []
        """The bytes of the streams that arrived for the applied steps."""
        self.max_held_bytes = 1 << 30
        self.held_groups = HeldGroups()
        self.refuse_steps = False
        """Report of every step that its gradient is not finite."""
        self.may_step = asyncio.Event()
        """While it is not set, no step ends."""
        self.may_step.set()
        self.saves: dict[str, learner_pb2.LearnerServiceSaveCheckpointResponse] = {}
        """By the checkpoint and the version that it was asked to save."""
        self.may_finish = asyncio.Event()
        """While it is not set, no checkpoint is brought to disk."""
        self.may_finish.set()
        self.checkpoints: Path | None = None
        """Where it writes a file for each checkpoint; nowhere by default."""
        self.exports: list[str] = []
        self.configs: list[tuple[int, RunConfig]] = []
        """Configurations that replaced the first one, each with the policy version before its first step."""
        self.profiled: list[int] = []
        """The number of steps of each recording that was asked for."""
        self.may_end_profile = asyncio.Event()
        """While it is not set, no recording ends."""
        self.num_dropped_profiles = 0
        self.stepping = asyncio.Event()
        self.num_publishes_in_step = 0
        self.created: list[int] = []
        """The epochs whose groups it created, in order."""
        self.broadcast: list[int] = []
        """The epoch of each broadcast, in order."""
        self.broadcast_within_s: list[float] = []
        """The time that each broadcast may take, in order."""
        self._results: dict[str, learner_pb2.TrainStepResponse] = {}
        self._run_id = ""

    async def Configure(self, request: Any, context: Any) -> learner_pb2.LearnerServiceConfigureResponse:
        if self._run_id not in ("", request.run_id):  # As a real one that has restarted for the run.
            self.plane.attempt = self.plane.policy_version = self.plane.epoch = 0
            self.held_groups = HeldGroups()
        self._run_id = request.run_id
        return learner_pb2.LearnerServiceConfigureResponse(status=READY)

    async def GetStatus(self, request: Any, context: Any) -> learner_pb2.LearnerServiceGetStatusResponse:
        return learner_pb2.LearnerServiceGetStatusResponse(status=READY, version=self.plane.version())

    async def HandOverGroup(
        self, request_iterator: AsyncIterator[learner_pb2.HandOverGroupRequest], context: Any
    ) -> learner_pb2.HandOverGroupResponse:
        await self.held_groups.receive(request_iterator, self.max_held_bytes)
        return learner_pb2.HandOverGroupResponse()

    async def TrainStep(
        self, request_iterator: AsyncIterator[learner_pb2.TrainStepRequest], context: Any
    ) -> learner_pb2.TrainStepResponse:
        messages = [message async for message in request_iterator]
        header = messages[0].header
        if (stored := self._results.get(header.train_step_id)) is not None:
            return stored
        if header.expected_version != self.plane.version():
            raise FailedPrecondition(f"expected {header.expected_version}, is {self.plane.version()}")
        batch = batch_from_wire(messages, self.held_groups.named_in(messages))
        self.held_groups.step_begins(batch)
        self.stepping.set()
        await asyncio.sleep(self.step_s)
        await self.may_step.wait()
        self.stepping.clear()
        if self.refuse_steps:
            return learner_pb2.TrainStepResponse(skip_reason="the gradient is not finite", version=self.plane.version())
        self.batches.append(list(batch_to_wire(batch)))
        self.step_bytes.append(sum(message.ByteSize() for message in messages))
        self.plane.policy_version += 1
        response = learner_pb2.TrainStepResponse(applied=True, version=self.plane.version(), metrics={"lr": 1.0})
        self._results[header.train_step_id] = response
        return response

    async def SetHyperparameters(self, request: Any, context: Any) -> learner_pb2.SetHyperparametersResponse:
        self.configs.append((self.plane.policy_version, parse_config(request.config)))
        return learner_pb2.SetHyperparametersResponse(version=self.plane.version())

    async def ComputeLogprobs(self, request: Any, context: Any) -> learner_pb2.ComputeLogprobsResponse:
        assert request.model == learner_pb2.MODEL_REFERENCE
        return learner_pb2.ComputeLogprobsResponse(
            logprobs=[np.full(len(data) // 4 - 1, -1.5, "<f4").tobytes() for data in request.token_ids],
            version=self.plane.version(),
        )

    async def CreateWeightGroup(self, request: Any, context: Any) -> learner_pb2.CreateWeightGroupResponse:
        if request.epoch <= self.plane.epoch:
            raise FailedPrecondition(f"epoch {request.epoch} is not newer than {self.plane.epoch}")
        self.plane.epoch = request.epoch
        self.created.append(request.epoch)
        return learner_pb2.CreateWeightGroupResponse(
            rendezvous=weights_pb2.WeightRendezvous(epoch=request.epoch, world_size=request.world_size)
        )

    async def PublishWeights(self, request: Any, context: Any) -> learner_pb2.PublishWeightsResponse:
        self.num_publishes_in_step += self.stepping.is_set()
        self.broadcast.append(request.epoch)
        self.broadcast_within_s.append(request.timeout.ToNanoseconds() / 1e9)
        # Each pass is one event: the same epoch may carry many.
        self.plane.sent.setdefault(request.epoch, asyncio.Event()).set()
        self.plane.sent[request.epoch] = asyncio.Event()
        if request.epoch in self.plane.broken:
            raise Unavailable("a member went away", reason="WEIGHT_GROUP_BROKEN")
        return learner_pb2.PublishWeightsResponse(version=self.plane.version(), hashes=HASHES, canary=CANARY)

    async def SaveCheckpoint(self, request: Any, context: Any) -> learner_pb2.LearnerServiceSaveCheckpointResponse:
        save_id = f"{request.checkpoint_id} of {request.expected_version}"
        if save_id not in self.saves:
            file = learner_pb2.FileDigest(path=f"v{self.plane.policy_version}", num_bytes=1, sha256="00")
            if self.checkpoints is not None:
                folder = self.checkpoints / request.checkpoint_id / "learner"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / file.path).write_bytes(b"x")
                file.sha256 = hashlib.sha256(b"x").hexdigest()
            self.saves[save_id] = learner_pb2.LearnerServiceSaveCheckpointResponse(
                version=self.plane.version(), num_ranks=1, files=[file]
            )
        if request.return_when_written:
            return learner_pb2.LearnerServiceSaveCheckpointResponse(version=self.plane.version(), num_ranks=1)
        await self.may_finish.wait()
        return self.saves[save_id]

    async def LoadCheckpoint(self, request: Any, context: Any) -> learner_pb2.LoadCheckpointResponse:
        self.plane.attempt = request.attempt
        self.held_groups.begin_attempt(request.attempt)
        self.plane.policy_version = int(request.files[0].path[1:]) if request.checkpoint_id else 0
        self.batches = self.batches[: self.plane.policy_version]
        return learner_pb2.LoadCheckpointResponse(version=self.plane.version())

    async def Profile(self, request: learner_pb2.ProfileRequest, context: Any) -> learner_pb2.ProfileResponse:
        if request.num_steps > 10:
            raise InvalidArgument("num_steps must be 1 to 10", reason="INVALID_ARGUMENT")
        self.profiled.append(request.num_steps)
        first = self.plane.version()
        try:
            await self.may_end_profile.wait()
        except asyncio.CancelledError:
            self.num_dropped_profiles += 1
            raise
        paths = [f"/data/profiles/rank-{rank}.json.gz" for rank in range(2)]
        return learner_pb2.ProfileResponse(paths=paths, first_version=first, version=self.plane.version())

    async def ExportModel(self, request: Any, context: Any) -> learner_pb2.ExportModelResponse:
        if request.export_name:
            self.exports = [name for name in self.exports if name in request.keep_export_names] + [request.export_name]
        return learner_pb2.ExportModelResponse(path=request.export_name or "model", version=self.plane.version())


async def break_connection(server: RpcServer | None) -> None:
    """Ends a worker from within one of its calls, which therefore never returns."""
    assert server is not None
    stopping = asyncio.create_task(server.stop(0))
    await asyncio.Event().wait()
    await stopping


async def serve_worker(
    coordinator: str, servicer: Any, worker_id: str, *, comes_back: bool = False
) -> tuple[RpcServer, "asyncio.Task[None]"]:
    """Serves and registers a worker, and keeps its lease; with `comes_back`, over a coordinator's restart."""
    server = RpcServer(listen="127.0.0.1:0")
    service = {
        worker_pb2.WORKER_KIND_GENERATOR: GENERATOR,
        worker_pb2.WORKER_KIND_REWARD: REWARD,
        worker_pb2.WORKER_KIND_LEARNER: LEARNER,
    }[servicer.kind]
    server.add(ADD_TO_SERVER[service], servicer, service)
    environments = getattr(servicer, "environments", servicer)  # Those of a real reward service, or its own.
    if isinstance(environments, environment_pb2_grpc.EnvironmentServiceServicer):
        server.add(ADD_TO_SERVER[ENVIRONMENT], environments, ENVIRONMENT)
    await server.start()
    servicer.server = server
    stub = coordinator_pb2_grpc.CoordinatorServiceStub(connect(coordinator, COORDINATOR))
    registration = coordinator_pb2.RegisterWorkerRequest(
        worker_id=worker_id, kind=servicer.kind, address=f"127.0.0.1:{server.port}"
    )
    await stub.RegisterWorker(registration, timeout=60)

    async def beat() -> None:
        while True:
            await asyncio.sleep(1)
            try:
                status = getattr(servicer, "heartbeat", None)
                await stub.Heartbeat(coordinator_pb2.HeartbeatRequest(worker_id=worker_id, status=status), timeout=60)
            except (NotFound, Unavailable):
                if not comes_back:
                    return
                with contextlib.suppress(Unavailable):
                    await stub.RegisterWorker(registration, timeout=60)

    return server, asyncio.create_task(beat())


@contextlib.asynccontextmanager
async def serving_workers(coordinator: str, *servicers: Any, comes_back: bool = False) -> AsyncIterator[None]:
    """Serves and registers workers until the end of the block, one of a kind: "learner-0" and so on."""
    served = []
    for servicer in servicers:
        kind = worker_pb2.WorkerKind.Name(servicer.kind).removeprefix("WORKER_KIND_").lower()
        served.append(await serve_worker(coordinator, servicer, f"{kind}-0", comes_back=comes_back))
    yield
    for server, beating in served:
        beating.cancel()
        await server.stop(0)


def arithmetic_config(model: Path, **sections: Any) -> dict[str, Any]:
    """A configuration for the scripted workers; keyword arguments add to its sections."""
    config = {
        "model": {"path": str(model)},
        "data": {"sources": [{"task": "arithmetic", "task_size": 200}], "max_prompt_tokens": 200},
        "grpo": {"group_size": 4, "groups_per_step": 4, "max_staleness": 1},
        "sampling": {"max_completion_tokens": 16},
        "run": {"name": "scripted", "num_steps": 5},
        "coordinator": {"worker_timeout_s": 60},
        "weights": {"timeout_s": 60},
    }
    return extended(config, sections)
