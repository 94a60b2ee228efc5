"""A mixture of experts in real vLLM, whose requests keep their caches across loads."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from shoal.errors import InvalidArgument
from shoal.rollout import Completion
from tests.support.packages import skip_without
from tests.support.published_experts import engine_canary
from tests.support.real_generator import (
    CANARY,
    PROMPT,
    TIMEOUT_S,
    Client,
    Generator,
    Sender,
    configured_client,
    gap,
    logprobs_of,
)
from tests.support.tiny_experts import make_tiny_experts, move, published

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

torch = pytest.importorskip("torch")
skip_without("vllm")


@dataclass
class Setting:
    generator: Generator
    model: Any


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("experts")
    model = make_tiny_experts(folder / "model", "mixtral")
    generator = Generator(folder, folder / "model", keep_stale_kv=True, spoil_first_weights=False)
    yield Setting(generator, model)
    generator.end()


@pytest.fixture
async def client(setting: Setting) -> AsyncIterator[Client]:
    async with configured_client(setting.generator) as client:
        yield client


async def test_experts_compute_with_the_weights_of_each_publish(client: Client, setting: Setting) -> None:
    """vLLM packs experts for its kernel on CPUs when it starts, and not when it loads others."""
    assert gap(await client.score(), logprobs_of(setting.model, CANARY)) < 1e-4, "as the engine loaded the files"
    for version in (1, 2):
        before = logprobs_of(setting.model, CANARY)
        move(setting.model, seed=version)
        after = logprobs_of(setting.model, CANARY)
        assert gap(before, after) > 0.5, "the weights hardly moved"
        moved, dtype = await engine_canary(client, setting.model, version)
        assert gap(moved, after) < 1e-4 and dtype == "float32"


def expected(model: Any, completion: Completion) -> Any:
    return logprobs_of(model, [*PROMPT, *completion.token_ids])[len(PROMPT) - 1 :]


async def test_a_request_after_a_load_reads_no_prefix_from_before_it(client: Client, setting: Setting) -> None:
    """Requests in flight keep the cache of earlier weights here; the next ones with the same prompt must not."""
    await client.publish(published(setting.model), 3)
    (first,) = await client.sample(1)
    assert gap(first.behavior_logprobs, expected(setting.model, first)) < 1e-4
    move(setting.model, seed=3)
    await client.publish(published(setting.model), 4)
    (second,) = await client.sample(1)
    assert gap(second.behavior_logprobs, expected(setting.model, second)) < 1e-4, "keys of the former weights"
    assert gap(await client.score(), logprobs_of(setting.model, CANARY)) < 1e-4
    load = (await client.status()).status.load
    assert load.HasField("kv_cache_use") and 0 <= load.kv_cache_use < 1


async def test_a_publish_under_names_that_vllm_does_not_know_is_refused(client: Client, setting: Setting) -> None:
    """transformers' own, which for this family no generator would wait for."""
    sender = Sender(setting.generator, dict(setting.model.named_parameters()))
    with pytest.raises(InvalidArgument, match=r"no tensor 'model\.layers\.0\.mlp\.gate\.weight'"):
        await client.stub.JoinWeightGroup(sender.join_request(), timeout=TIMEOUT_S)
