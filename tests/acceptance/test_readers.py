"""Models that can also read images, each in an engine of its own: what is published is what it computes with."""

from pathlib import Path

import pytest

from tests.support.engine_families import dtype_of, tolerance_of
from tests.support.packages import skip_without
from tests.support.published_experts import publish_moved
from tests.support.real_generator import gap
from tests.support.tiny_families import READERS

pytestmark = pytest.mark.timeout(600)

torch = pytest.importorskip("torch")
skip_without("vllm")


# Gemma 3 is in tests/integration/test_readers.py.
@pytest.mark.parametrize("family", [family for family in READERS if family != "gemma3-whole"])
async def test_an_engine_computes_with_the_text_part_of_a_publish(family: str, tmp_path: Path) -> None:
    from tests.support.tiny_readers import make_tiny_reader

    found = await publish_moved(tmp_path, make_tiny_reader(tmp_path / "model", family), dtype=dtype_of(family))
    gaps, motion = [gap(*pair) for pair in found.pairs], gap(found.before, found.after)
    print(f"{family}: {gaps[0]:.1e} as loaded, {gaps[1]:.1e} published, {gaps[2]:.1e} after {motion:.2f}")
    assert motion > 0.5 and max(gaps) < tolerance_of(family), gaps
