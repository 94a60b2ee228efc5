"""Every family of text models in real vLLM: as it loads their files, after publishes, or refused by name."""

from pathlib import Path

import pytest

from shoal.errors import ShoalError
from shoal.rpc.channel import connect
from shoal.v1.generator_pb2_grpc import GeneratorServiceStub
from tests.support.engine_families import REFUSED, SERVED, dtype_of, tolerance_of
from tests.support.loopback import GENERATOR
from tests.support.packages import skip_without
from tests.support.published_experts import publish_moved
from tests.support.real_generator import Client, Generator, gap
from tests.support.tiny_families import FAMILIES, save_family

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

pytest.importorskip("torch")
skip_without("vllm")


@pytest.mark.parametrize("family", SERVED)
async def test_the_engine_computes_what_the_model_does_as_loaded_and_as_published(family: str, tmp_path: Path) -> None:
    model = save_family(family, tmp_path / "model", **SERVED[family])
    found = await publish_moved(tmp_path, model, dtype=dtype_of(family))
    assert gap(found.before, found.after) > 0.3, "the weights hardly moved"
    gaps = {when: gap(*pair) for when, pair in zip(("as loaded", "published", "moved"), found.pairs, strict=True)}
    print(family, *(f"{value:.1e} {when}" for when, value in gaps.items()))
    assert max(gaps.values()) < tolerance_of(family), gaps


@pytest.mark.parametrize("family", REFUSED)
async def test_a_family_that_the_engine_cannot_compute_is_refused_by_name_before_it_starts(
    family: str, tmp_path: Path
) -> None:
    save_family(family, tmp_path / "model")
    generator = Generator(tmp_path, tmp_path / "model", dtype=dtype_of(family))
    try:
        async with connect(generator.address, GENERATOR) as channel:
            client = Client(GeneratorServiceStub(channel), generator)
            with pytest.raises((AssertionError, ShoalError), match=REFUSED[family]):
                await client.configure()
            assert not list(generator.temporary.glob("shoal-engine-*")), "an engine was started"
    finally:
        generator.end()


def test_every_family_is_either_served_or_refused() -> None:
    assert set(SERVED) | set(REFUSED) == set(FAMILIES) and not set(SERVED) & set(REFUSED)
