"""A learner of two ranks, as the launcher starts them: publishes, recordings of its steps, and the death of a rank."""

import asyncio
import gzip
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file

from shoal.errors import Internal, Unavailable
from shoal.rpc.channel import connect
from shoal.v1 import learner_pb2, worker_pb2
from shoal.v1.learner_pb2_grpc import LearnerServiceStub
from shoal.weights.transfer import hash_tensor
from tests.support.learner_client import TIMEOUT_S, Client
from tests.support.loopback import LEARNER
from tests.support.processes import ONE_THREAD, serving_process
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

FORWARD = {"aten::embedding", "aten::matmul", "aten::silu", "aten::softmax", "aten::bmm"}
BACKWARD_AND_STEP = {"TokenLogprobsBackward", "aten::_fused_adamw_"}


@dataclass
class Launched:
    process: asyncio.subprocess.Process
    client: Client
    log: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def launched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Launched]:
    folder = tmp_path_factory.mktemp("launched")
    log = folder / "log"
    config = {
        "model": {"path": str(make_tiny_model(folder / "model"))},
        "data": {"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 64},
        "learner": {"zero_stage": 3, "compute_dtype": "bfloat16", "pack_tokens": 64},
        "weights": {"dtype": "bfloat16"},
    }
    options = ("--num-ranks", "2", "--data-dir", folder, "--log-file", log)
    async with (
        serving_process("services.learner", *options, **ONE_THREAD) as (process, address),
        connect(address, LEARNER) as channel,
    ):
        client = Client(LearnerServiceStub(channel), folder, config, None)
        await client.configure()
        assert await client.loaded() == worker_pb2.WORKER_STATE_READY, log.read_text()[-4000:]
        yield Launched(process, client, log)


async def begun(learner: Client, num_steps: int) -> "asyncio.Task[learner_pb2.ProfileResponse]":
    """Returns a call whose recording begins with the next step."""

    async def call() -> learner_pb2.ProfileResponse:
        return await learner.stub.Profile(learner_pb2.ProfileRequest(num_steps=num_steps), timeout=TIMEOUT_S)

    recording = asyncio.create_task(call())
    await asyncio.sleep(0)
    await learner.status()  # Sent after that call, so the learner has begun to serve it.
    return recording


def events_of(path: str) -> list[dict[str, Any]]:
    trace = json.loads(gzip.decompress(Path(path).read_bytes()))
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


async def test_each_rank_writes_a_trace_of_two_steps(launched: Launched) -> None:
    learner = launched.client
    recording = await begun(learner, 2)
    steps = [await learner.train(await learner.batch(f"step-{number}")) for number in range(2)]
    assert all(step.applied for step in steps)
    response = await recording
    assert len(response.paths) == 2, response
    for rank, path in enumerate(response.paths):
        assert path.endswith(f"/profiles/step-00000001-rank-{rank}.json.gz"), path
        events = events_of(path)
        recorded = {event["name"]: event for event in events if event["name"].startswith("train step")}
        assert list(recorded) == ["train step 1", "train step 2"], list(recorded)
        for name, step in recorded.items():
            inside = {
                event["name"]
                for event in events
                if step["ts"] <= event["ts"] <= event["ts"] + event["dur"] <= step["ts"] + step["dur"]
            }
            missing = (FORWARD | BACKWARD_AND_STEP) - inside
            assert not missing, f"{name} of rank {rank} lacks {missing} among {len(inside)} operations"
    for step in steps:
        assert 0 < step.metrics["learner_tokens_per_second_per_rank"] < 1e6, step.metrics
        assert "learner_mfu" not in step.metrics, "a CPU has no data sheet"


async def test_published_weights_are_the_rounded_masters(launched: Launched) -> None:
    """A bfloat16 broadcast gathers the values to which a float32 export rounds."""
    stub = launched.client.stub
    await stub.CreateWeightGroup(learner_pb2.CreateWeightGroupRequest(epoch=1, world_size=1), timeout=60)
    sent = await stub.PublishWeights(learner_pb2.PublishWeightsRequest(epoch=1), timeout=60)
    exported = await stub.ExportModel(learner_pb2.ExportModelRequest(), timeout=60)
    weights = load_file(Path(exported.path) / "model.safetensors")
    assert {digest.name: digest.xxh3 for digest in sent.hashes} == {
        name: hash_tensor(tensor.to(torch.bfloat16)) for name, tensor in weights.items()
    }


async def test_a_follower_that_dies_ends_the_learner_with_a_message_that_names_it_and_drops_the_recording(
    launched: Launched,
) -> None:
    learner = launched.client
    dropped = await begun(learner, 2)
    leader, follower = (await learner.status()).rank_pids
    assert leader == launched.process.pid
    os.kill(follower, signal.SIGKILL)
    # Rank 0 names the lost rank if it notices the loss before its process ends.
    with pytest.raises((Unavailable, Internal)):
        await dropped
    assert await asyncio.wait_for(launched.process.wait(), 60) == 1
    assert f"rank 1 (pid {follower}) was killed" in launched.log.read_text()
    assert len(list((learner.run_dir / "profiles").iterdir())) == 2
