"""Models that can also read images, each in an engine of its own: what is published is what it computes with."""

from pathlib import Path

import pytest

from tests.support.packages import skip_without
from tests.support.published_experts import publish_moved
from tests.support.real_generator import gap

pytestmark = pytest.mark.timeout(600)

torch = pytest.importorskip("torch")
skip_without("vllm")


# Gemma 3 is in tests/integration/test_readers.py. On a CPU vLLM computes Qwen3.5 in bfloat16 alone.
@pytest.mark.parametrize(
    ("family", "dtype", "largest"),
    [
        ("gemma4-whole", "float32", 1e-4),
        ("qwen3-vl", "float32", 1e-4),
        ("qwen2.5-vl", "float32", 1e-4),
        ("ministral3-whole", "float32", 1e-4),
        ("qwen3.5-whole", "bfloat16", 0.2),
    ],
)
async def test_an_engine_computes_with_the_text_part_of_a_publish(
    family: str, dtype: str, largest: float, tmp_path: Path
) -> None:
    from tests.support.tiny_readers import make_tiny_reader

    found = await publish_moved(tmp_path, make_tiny_reader(tmp_path / "model", family), dtype=dtype)
    gaps, motion = [gap(*pair) for pair in found.pairs], gap(found.before, found.after)
    print(f"{family}: {gaps[0]:.1e} as loaded, {gaps[1]:.1e} published, {gaps[2]:.1e} after {motion:.2f}")
    assert motion > 0.5 and max(gaps) < largest, gaps
