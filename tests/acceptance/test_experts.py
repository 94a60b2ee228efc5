"""Mixtures of experts, each in an engine of its own: what is published is what it computes with."""

from pathlib import Path

import pytest

from tests.support.packages import skip_without
from tests.support.published_experts import publish_moved
from tests.support.real_generator import gap
from tests.support.tiny_experts import make_tiny_experts

pytestmark = pytest.mark.timeout(600)

torch = pytest.importorskip("torch")
skip_without("vllm")


# Mixtral is in tests/integration/test_experts.py.
@pytest.mark.parametrize("family", ["qwen3_moe", "glm4_moe", "olmoe"])
async def test_an_engine_computes_with_the_experts_of_a_publish(family: str, tmp_path: Path) -> None:
    model = make_tiny_experts(tmp_path / "model", family)
    found = await publish_moved(tmp_path, model)
    gaps, motion = [gap(*pair) for pair in found.pairs], gap(found.before, found.after)
    print(f"{family}: {gaps[0]:.1e} as loaded, {gaps[1]:.1e} published, {gaps[2]:.1e} after {motion:.2f}")
    assert motion > 0.5 and max(gaps) < 1e-4, gaps
