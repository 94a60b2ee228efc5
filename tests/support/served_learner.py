"""A learner that is served in the process of the tests: one rank, real DeepSpeed, a tiny model."""

import importlib
from collections.abc import AsyncIterator

import deepspeed.utils.groups
import pytest
import pytest_asyncio

from services.learner.commands import LearnerCommands
from services.learner.ranks.process_group import ProcessGroup
from services.learner.service import LearnerService
from shoal.rpc.channel import connect
from shoal.v1 import worker_pb2
from shoal.v1.learner_pb2_grpc import LearnerServiceStub
from tests.support.learner_client import Client
from tests.support.loopback import LEARNER, serving
from tests.support.tiny_model import make_tiny_model


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """A learner that is configured once for the module. Tests query its version, since earlier tests raise it."""
    folder = make_tiny_model(tmp_path_factory.mktemp("model"))
    data_dir = tmp_path_factory.mktemp("data")
    config = {
        "model": {"path": str(folder)},
        "data": {"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 64},
        "grpo": {"groups_per_step": 4, "num_mini_batches": 2},
        "kl": {"coef": 0.1},
        "learner": {"zero_stage": 2, "compute_dtype": "float32", "learning_rate": 1e-3, "pack_tokens": 64},
        "weights": {"timeout_s": 3.0},
    }
    service = LearnerService(lambda: LearnerCommands(ProcessGroup.connect(), data_dir), lambda: "127.0.0.1")
    async with serving(service, LEARNER) as address, connect(address, LEARNER) as channel:
        client = Client(LearnerServiceStub(channel), data_dir, config, service)
        assert (await client.status()).status.state == worker_pb2.WORKER_STATE_IDLE
        status = await client.configure()
        assert status.state == worker_pb2.WORKER_STATE_LOADING
        assert await client.loaded() == worker_pb2.WORKER_STATE_READY, await client.status()
        yield client
    await service.close()
    # Otherwise DeepSpeed would use the groups that the learner has left, in the learner of the next module.
    deepspeed.comm.comm.cdb = None
    importlib.reload(deepspeed.utils.groups)
