"""Mixtures of experts, each in an engine of its own: what is published is what it computes with."""

from pathlib import Path

import pytest

from shoal.rpc.channel import connect
from shoal.v1.generator_pb2_grpc import GeneratorServiceStub
from shoal.wire import float32_from_wire
from tests.support.loopback import GENERATOR
from tests.support.packages import skip_without
from tests.support.real_generator import CANARY, Client, Generator, gap, logprobs_of
from tests.support.tiny_experts import make_tiny_experts, move, published

pytestmark = pytest.mark.timeout(600)

torch = pytest.importorskip("torch")
skip_without("vllm")


# Mixtral is in tests/integration/test_experts.py.
@pytest.mark.parametrize("family", ["qwen3_moe", "glm4_moe", "olmoe"])
async def test_an_engine_computes_with_the_experts_of_a_publish(family: str, tmp_path: Path) -> None:
    model = make_tiny_experts(tmp_path / "model", family)
    generator = Generator(tmp_path, tmp_path / "model")
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
    gaps = [gap(as_loaded, before), gap(first, before), gap(moved, after)]
    print(f"{family}: {gaps[0]:.1e} as loaded, {gaps[1]:.1e} published, {gaps[2]:.1e} after {gap(before, after):.2f}")
    assert gap(before, after) > 0.5 and max(gaps) < 1e-4, gaps
