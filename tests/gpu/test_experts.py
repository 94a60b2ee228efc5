"""Mixtures of experts in an engine on a GPU, whose kernels arrange the experts' weights in their own way."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.published_experts import publish_moved
from tests.support.real_generator import gap
from tests.support.tiny_experts import make_tiny_experts

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "glm4_moe", "olmoe", "minimax_m2", "ernie4_5_moe"])
async def test_an_engine_computes_with_the_experts_of_a_publish(family: str, tmp_path: Path) -> None:
    model = make_tiny_experts(tmp_path / "model", family).to(torch.bfloat16).float()
    found = await publish_moved(tmp_path, model, dtype="bfloat16", gpu_memory_utilization=0.2, enforce_eager=True)
    gaps = [float(np.abs(one - other).mean()) for one, other in found.pairs]
    motion = gap(found.before, found.after)
    print(f"{family}: {gaps} nats on average as loaded, published, and published after a move of {motion}")
    # A random router chooses other experts for a token or two in bfloat16.
    assert motion > 0.5 and max(gaps) < 0.1, gaps
    np.testing.assert_array_equal(
        found.as_loaded, found.first, "a publish of the weights that the engine has changes nothing"
    )
