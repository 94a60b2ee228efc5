"""The text part of a model that can also read images, in real vLLM."""

from pathlib import Path

import pytest

from tests.support.packages import skip_without
from tests.support.published_experts import publish_moved
from tests.support.real_generator import gap

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

torch = pytest.importorskip("torch")
skip_without("vllm")


async def test_an_engine_computes_with_the_text_part_of_a_publish(tmp_path: Path) -> None:
    from tests.support.tiny_readers import make_tiny_reader

    found = await publish_moved(tmp_path, make_tiny_reader(tmp_path / "model", "gemma3-whole"))
    gaps, motion = [gap(*pair) for pair in found.pairs], gap(found.before, found.after)
    assert motion > 0.5 and max(gaps) < 1e-4, gaps
