"""Recordings of train steps on two ranks, as the launcher starts them."""

import asyncio
import gzip
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import Internal, Unavailable
from shoal.rpc.channel import connect
from shoal.v1 import learner_pb2, worker_pb2
from shoal.v1.learner_pb2_grpc import LearnerServiceStub
from tests.support.learner_client import TIMEOUT_S, Client
from tests.support.loopback import LEARNER
from tests.support.processes import ONE_THREAD, serving_process
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

FORWARD = {"aten::embedding", "aten::linear", "aten::silu", "aten::softmax", "aten::bmm"}
BACKWARD_AND_STEP = {"TokenLogprobsBackward", "aten::_fused_adamw_"}


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


async def test_each_rank_writes_a_trace_of_two_steps_until_a_killed_rank_drops_the_next(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = {
        "model": {"path": str(make_tiny_model(tmp_path / "model"))},
        "data": {"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 64},
        "learner": {"zero_stage": 1, "compute_dtype": "float32", "pack_tokens": 64},
    }
    options = ("--num-ranks", "2", "--data-dir", tmp_path, "--log-file", log)
    async with (
        serving_process("services.learner", *options, **ONE_THREAD) as (process, address),
        connect(address, LEARNER) as channel,
    ):
        learner = Client(LearnerServiceStub(channel), tmp_path, config, None)
        await learner.configure()
        assert await learner.loaded() == worker_pb2.WORKER_STATE_READY, log.read_text()[-4000:]
        recording = await begun(learner, 2)
        metrics = [(await learner.train(await learner.batch(f"step-{number}"))).metrics for number in range(2)]
        response = await recording
        assert len(response.paths) == 2, response
        for rank, path in enumerate(response.paths):
            assert path.endswith(f"/profiles/step-00000001-rank-{rank}.json.gz"), path
            events = events_of(path)
            steps = {event["name"]: event for event in events if event["name"].startswith("train step")}
            assert list(steps) == ["train step 1", "train step 2"], list(steps)
            for name, step in steps.items():
                inside = {
                    event["name"]
                    for event in events
                    if step["ts"] <= event["ts"] <= event["ts"] + event["dur"] <= step["ts"] + step["dur"]
                }
                missing = (FORWARD | BACKWARD_AND_STEP) - inside
                assert not missing, f"{name} of rank {rank} lacks {missing} among {len(inside)} operations"
        for step_metrics in metrics:
            assert 0 < step_metrics["learner_tokens_per_second_per_rank"] < 1e6, step_metrics
            assert "learner_mfu" not in step_metrics, "a CPU has no data sheet"

        dropped = await begun(learner, 2)
        os.kill((await learner.status()).rank_pids[1], signal.SIGKILL)
        # Rank 0 names the lost rank if it notices the loss before its process ends.
        with pytest.raises((Unavailable, Internal)):
            await dropped
        assert await asyncio.wait_for(process.wait(), 60) == 1
    assert len(list((tmp_path / "run-1" / "profiles").iterdir())) == 2
