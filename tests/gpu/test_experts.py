"""Mixtures of experts in an engine on a GPU, whose kernels arrange the experts' weights in their own way."""

from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.rpc.channel import connect
from shoal.v1.generator_pb2_grpc import GeneratorServiceStub
from shoal.wire import float32_from_wire
from tests.support.loopback import GENERATOR
from tests.support.real_generator import CANARY, Client, Generator, gap, logprobs_of
from tests.support.tiny_experts import make_tiny_experts, move, published

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "glm4_moe", "olmoe", "minimax_m2", "ernie4_5_moe"])
async def test_an_engine_computes_with_the_experts_of_a_publish(family: str, tmp_path: Path) -> None:
    model = make_tiny_experts(tmp_path / "model", family).to(torch.bfloat16).float()
    generator = Generator(
        tmp_path, tmp_path / "model", dtype="bfloat16", gpu_memory_utilization=0.2, enforce_eager=True
    )
    try:
        async with connect(generator.address, GENERATOR) as channel:
            client = Client(GeneratorServiceStub(channel), generator)
            await client.configure()
            as_loaded, before = await client.score(), logprobs_of(model, CANARY)
            done, _ = await client.publish(published(model), 0)
            first = float32_from_wire(done.canary.logprobs, "canary")
            move(model)
            done, _ = await client.publish(published(model), 1)
            moved, after = float32_from_wire(done.canary.logprobs, "canary"), logprobs_of(model, CANARY)
    finally:
        generator.end()
    gaps = [float(np.abs(one - other).mean()) for one, other in ((as_loaded, before), (first, before), (moved, after))]
    print(f"{family}: {gaps} nats on average as loaded, published, and published after a move of {gap(before, after)}")
    # A random router chooses other experts for a token or two in bfloat16.
    assert gap(before, after) > 0.5 and max(gaps) < 0.1, gaps
    np.testing.assert_array_equal(as_loaded, first, "a publish of the weights that the engine has changes nothing")
