"""A client of LearnerService."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from services.learner.service import LearnerService
from shoal.config.load import config_struct, parse_config
from shoal.rollout import TrainBatch, TrainGroup, WeightVersion
from shoal.v1 import learner_pb2, weights_pb2, worker_pb2
from shoal.wire import batch_to_wire, float32_from_wire, int32_to_wire, version_from_wire, version_to_wire
from tests.support.train_batches import make_batch

RUN_ID = "run-1"
TIMEOUT_S = 120.0
CANARY = np.arange(40, 52, dtype=np.int32)


class Client:
    """A learner, and a stub of its service; without `service`, it is in another process."""

    def __init__(self, stub: Any, data_dir: Path, config: dict[str, Any], service: LearnerService | None) -> None:
        self.stub = stub
        self.service = service
        self.run_dir = data_dir / RUN_ID
        self.config = config

    async def configure(self, run_id: str = RUN_ID, **changes: Any) -> worker_pb2.WorkerStatus:
        config = config_struct(parse_config(self.config | changes))
        request = learner_pb2.LearnerServiceConfigureRequest(run_id=run_id, config=config)
        return (await self.stub.Configure(request, timeout=60)).status

    async def status(self) -> learner_pb2.LearnerServiceGetStatusResponse:
        return await self.stub.GetStatus(learner_pb2.LearnerServiceGetStatusRequest(), timeout=60)

    async def loaded(self) -> worker_pb2.WorkerState.ValueType:
        """Polls the status until the model is loaded, as any client must; returns the state."""
        state = (await self.status()).status.state
        while state == worker_pb2.WORKER_STATE_LOADING:
            await asyncio.sleep(0.05)
            state = (await self.status()).status.state
        return state

    async def version(self) -> WeightVersion:
        return version_from_wire((await self.status()).version)

    async def batch(self, step_id: str, groups: Sequence[TrainGroup] | None = None) -> TrainBatch:
        return make_batch(step_id, await self.version(), groups=groups)

    async def train(self, batch: TrainBatch) -> learner_pb2.TrainStepResponse:
        return await self.send(batch_to_wire(batch))

    async def send(self, messages: Iterable[learner_pb2.TrainStepRequest]) -> learner_pb2.TrainStepResponse:
        return await self.stub.TrainStep(iter(messages), timeout=TIMEOUT_S)

    async def logprobs(
        self,
        sequence: np.ndarray,
        temperature: float = 1.0,
        model: learner_pb2.Model.ValueType = learner_pb2.MODEL_UNSPECIFIED,
    ) -> np.ndarray:
        tokens = int32_to_wire(sequence)
        request = learner_pb2.ComputeLogprobsRequest(token_ids=[tokens], temperature=temperature, model=model)
        response = await self.stub.ComputeLogprobs(request, timeout=TIMEOUT_S)
        return float32_from_wire(response.logprobs[0], "logprobs")

    async def create_group(self, epoch: int, world_size: int) -> learner_pb2.CreateWeightGroupResponse:
        request = learner_pb2.CreateWeightGroupRequest(epoch=epoch, world_size=world_size)
        return await self.stub.CreateWeightGroup(request, timeout=60)

    async def publish(self, epoch: int) -> learner_pb2.PublishWeightsResponse:
        canary = weights_pb2.Canary(token_ids=int32_to_wire(CANARY))
        request = learner_pb2.PublishWeightsRequest(epoch=epoch, canary=canary)
        return await self.stub.PublishWeights(request, timeout=TIMEOUT_S)

    async def save(
        self,
        name: str,
        keep: Sequence[str] = (),
        version: WeightVersion | None = None,
        *,
        return_when_written: bool = False,
    ) -> learner_pb2.LearnerServiceSaveCheckpointResponse:
        request = learner_pb2.LearnerServiceSaveCheckpointRequest(
            checkpoint_id=name,
            keep_checkpoint_ids=keep,
            expected_version=None if version is None else version_to_wire(version),
            return_when_written=return_when_written,
        )
        return await self.stub.SaveCheckpoint(request, timeout=TIMEOUT_S)

    async def load(self, name: str, files: Sequence[learner_pb2.FileDigest], attempt: int) -> WeightVersion:
        request = learner_pb2.LoadCheckpointRequest(checkpoint_id=name, files=files, attempt=attempt)
        return version_from_wire((await self.stub.LoadCheckpoint(request, timeout=TIMEOUT_S)).version)
