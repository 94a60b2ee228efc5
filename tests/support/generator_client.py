"""A client of a served generator."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from google.protobuf.struct_pb2 import Struct

from services.generator.service import GeneratorService
from shoal.config.load import config_struct
from shoal.rollout import SamplingParams
from shoal.v1 import generator_pb2 as pb
from shoal.v1 import rollout_pb2, weights_pb2, worker_pb2
from shoal.weights.rendezvous import Rendezvous
from shoal.wire import int32_to_wire, sampling_to_wire
from tests.support.configs import run_config
from tests.support.scripted_engine import MANIFEST, ScriptedEngine
from tests.support.waiting import eventually

PROMPT = np.array([1, 2, 3], dtype=np.int32)
TIMEOUT_S = 120


class Generator:
    def __init__(
        self,
        stub: Any,
        servicer: GeneratorService | None,
        engines: list[ScriptedEngine],
        starting: list[Awaitable[None] | Exception],
        ends: asyncio.Event,
    ) -> None:
        self.stub = stub
        self.servicer = servicer
        self.ends = ends
        """Set where the process would get SIGTERM, to restart."""
        self.engines = engines
        self.starting = starting
        """What the next start of an engine waits for, or fails with."""

    @property
    def engine(self) -> ScriptedEngine:
        return self.engines[-1]

    async def configure(self, run_id: str = "run", **changes: Any) -> worker_pb2.WorkerStatus:
        request = pb.GeneratorServiceConfigureRequest(run_id=run_id, config=config(**changes))
        return (await self.stub.Configure(request, timeout=TIMEOUT_S)).status

    async def status(self) -> pb.GeneratorServiceGetStatusResponse:
        return await self.stub.GetStatus(pb.GeneratorServiceGetStatusRequest(), timeout=TIMEOUT_S)

    async def reach(self, state: worker_pb2.WorkerState.ValueType) -> worker_pb2.WorkerStatus:
        return await self.until(lambda status: status.state == state)

    async def until(self, is_so: Callable[[worker_pb2.WorkerStatus], bool]) -> worker_pb2.WorkerStatus:
        async def wanted() -> worker_pb2.WorkerStatus | None:
            status = (await self.status()).status
            return status if is_so(status) else None

        return await eventually(wanted)

    async def join(self, epoch: int = 1, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "rendezvous": Rendezvous("run", epoch, "127.0.0.1", 1, 3, "gloo", 10).to_wire(),
            "rank_offset": 1,
            "manifest": MANIFEST.to_wire(),
        }
        await self.stub.JoinWeightGroup(pb.JoinWeightGroupRequest(**(fields | changes)), timeout=TIMEOUT_S)

    async def load(self, policy_version: int = 0, *, attempt: int = 0, epoch: int = 1) -> list[pb.LoadWeightsResponse]:
        return [response async for response in self.loading(policy_version, attempt=attempt, epoch=epoch)]

    def loading(self, policy_version: int = 0, *, attempt: int = 0, epoch: int = 1) -> Any:
        version = rollout_pb2.WeightVersion(attempt=attempt, policy_version=policy_version)
        canary = weights_pb2.Canary(token_ids=int32_to_wire(PROMPT))
        request = pb.LoadWeightsRequest(epoch=epoch, version=version, canary=canary)
        return self.stub.LoadWeights(request, timeout=TIMEOUT_S)

    async def sample(self, **changes: Any) -> list[int]:
        """Samples a group; the sample indexes in order of arrival."""
        return [message.completion.sample_index async for message in self.sampling(**changes)]

    async def held_sample(self) -> "asyncio.Task[list[int]]":
        """Begins to sample a group whose completions wait at the gate of the engine."""
        self.engine.sample_gate = asyncio.Event()
        waiting = asyncio.create_task(self.sample())
        await self.until(lambda status: status.load.num_running == 2)
        return waiting

    async def held_load(self) -> Any:
        """Begins a load that is ready, and waits at the gate of the engine."""
        self.engine.load_gate = asyncio.Event()
        call = self.loading(1)
        assert (await call.read()).stage == pb.LOAD_STAGE_READY
        return call

    def sampling(self, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "request_id": "request",
            "prompt_token_ids": int32_to_wire(PROMPT),
            "sampling": sampling_to_wire(SamplingParams(1.0, 4, ())),
            "seeds": [10, 20],
        }
        return self.stub.GenerateGroup(pb.GenerateGroupRequest(**(fields | changes)), timeout=TIMEOUT_S)


def config(**generator: Any) -> Struct:
    table = {"max_num_seqs": 2, "max_queued_requests": 2} | generator
    return config_struct(run_config("tiny", grpo={"group_size": 2}, generator=table))
