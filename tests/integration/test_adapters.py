"""A generator with real vLLM that samples with adapters. This process publishes them over real gloo groups."""

import asyncio
import copy
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from shoal.errors import DeadlineExceeded, InvalidArgument
from shoal.rollout import Completion, WeightVersion
from shoal.v1 import generator_pb2 as pb
from shoal.v1 import worker_pb2
from shoal.weights.adapter import adapter_name, adapter_shapes
from shoal.weights.manifest import hashes_to_wire
from shoal.wire import float32_from_wire
from tests.support.packages import skip_without
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
    manifest_of,
    random_model,
    weights_of,
)
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

torch = pytest.importorskip("torch")
skip_without("vllm")

# A rank for which vLLM has no room of just that size.
RANK, ALPHA = 6, 12
SCALE = ALPHA / RANK**0.5
"""rsLoRA."""
SLOTS = 3
"""Versions that are decoded at once at the default `grpo.max_staleness` of 1."""


def linears_of(model: Any) -> dict[str, Any]:
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }


def random_adapter(model: Any, seed: int) -> dict[str, Any]:
    """Returns the tensors of an adapter that moves log-probabilities far more than rounding does."""
    shapes = adapter_shapes({name: tuple(layer.weight.shape) for name, layer in linears_of(model).items()}, RANK)
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def merged(model: Any, adapter: dict[str, Any]) -> Any:
    whole = copy.deepcopy(model)
    for name, layer in linears_of(whole).items():
        layer.weight.data += SCALE * adapter[adapter_name(name, "B")] @ adapter[adapter_name(name, "A")]
    return whole


@dataclass
class Setting:
    generator: Generator
    base: Any
    adapters: dict[int, dict[str, Any]]
    """By policy version."""

    def policy(self, version: int) -> Any:
        return merged(self.base, self.adapters[version])

    def check(self, completion: Completion, version: int) -> None:
        """Checks that a whole completion was drawn under one version, by its log-probabilities."""
        spans = [(str(span.version), span.start, span.end) for span in completion.version_spans]
        assert spans == [(f"0.{version}", 0, completion.num_tokens)]
        expected = logprobs_of(self.policy(version), [*PROMPT, *completion.token_ids])[len(PROMPT) - 1 :]
        found = gap(completion.behavior_logprobs, expected)
        assert found < 1e-4, f"version {version}: the engine differs by {found}"


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("lora")
    base = random_model(folder / "base", seed=1)
    lora = {"rank": RANK, "alpha": ALPHA, "rslora": True}
    generator = Generator(folder, folder / "base", lora=lora, lora_way="adapter")
    yield Setting(generator, base, {version: random_adapter(base, version) for version in range(1, 8)})
    generator.end()


@pytest.fixture
async def client(setting: Setting) -> AsyncIterator[Client]:
    async with configured_client(setting.generator) as client:
        yield client


async def in_flight(client: Client, seed: int, max_tokens: int) -> "asyncio.Task[list[Completion]]":
    before = (await client.status()).status.load.num_running
    sampling = asyncio.create_task(client.sample(seed, max_tokens=max_tokens, timeout_s=300))
    await client.until(lambda status: status.load.num_running > before)
    return sampling


async def test_before_the_first_publish_the_engine_is_the_model_itself(client: Client, setting: Setting) -> None:
    assert (await client.status()).status.state == worker_pb2.WORKER_STATE_STALE
    assert gap(await client.score(), logprobs_of(setting.base, CANARY)) < 1e-4


async def test_a_publish_carries_the_adapter_alone(client: Client, setting: Setting) -> None:
    done, sent = await client.publish(setting.adapters[1], 1)
    assert list(done.hashes) == hashes_to_wire(sent)
    policy = logprobs_of(setting.policy(1), CANARY)
    assert gap(float32_from_wire(done.canary.logprobs, "canary"), policy) < 1e-4
    assert gap(policy, logprobs_of(setting.base, CANARY)) > 0.1, "the adapter changes next to nothing"
    small, whole = (
        sum(spec.num_bytes for spec in manifest_of(tensors).tensors)
        for tensors in (setting.adapters[1], weights_of(setting.base))
    )
    assert small < whole / 20, f"{small} bytes of {whole}"
    [completion] = await client.sample(1, max_tokens=64)
    setting.check(completion, 1)


async def test_completions_end_under_the_version_they_began_with_however_many_follow(
    client: Client, setting: Setting
) -> None:
    """More versions than the engine decodes at once, so that it drops adapters and loads them again.

    It is paused, and only the canaries let it take steps: a canary without a free slot waits until a completion ends.
    """
    await client.pause()
    sampling = {}
    for version in range(1, SLOTS + 4):
        await client.publish(setting.adapters[version], version)
        sampling[version] = await in_flight(client, seed=version, max_tokens=80)
    assert len(setting.generator.adapter_folders()) >= SLOTS, "an adapter in use is gone"
    await client.resume()
    for version, task in sampling.items():
        [completion] = await task
        setting.check(completion, version)
    await eventually(lambda: len(setting.generator.adapter_folders()) <= 1, "no adapter is kept without a request")


async def test_a_scoring_call_in_a_batch_leaves_all_requests_right(client: Client, setting: Setting) -> None:
    await client.pause()
    sampling = {}
    for version in (1, 2):
        await client.publish(setting.adapters[version], version)
        sampling[version] = await in_flight(client, seed=version, max_tokens=60)
    scoring = [asyncio.create_task(client.score()) for _ in range(4)]
    await client.resume()
    for score in await asyncio.gather(*scoring):
        assert gap(score, logprobs_of(setting.policy(2), CANARY)) < 1e-4
    for version, task in sampling.items():
        [completion] = await task
        setting.check(completion, version)


async def test_a_new_version_does_not_meet_the_cached_prompts_of_another(client: Client, setting: Setting) -> None:
    await client.publish(setting.adapters[3], 3)
    assert len(PROMPT) > 32, "the prompt fills no block of the cache"
    for completion in await client.sample(1, 2):
        setting.check(completion, 3)
    await client.publish(setting.adapters[4], 4)
    for completion in await client.sample(1, 2):
        setting.check(completion, 4)
    # The same version once more, with other weights, as after a restore.
    setting.adapters[4] = random_adapter(setting.base, 44)
    await client.publish(setting.adapters[4], 4)
    for completion in await client.sample(1, 2):
        setting.check(completion, 4)


async def test_the_engine_samples_while_it_waits_for_the_sender(client: Client, setting: Setting) -> None:
    await client.publish(setting.adapters[1], 1)
    sender = Sender(setting.generator, setting.adapters[2])
    await client.join(sender)
    call = client.loading(sender.rendezvous.epoch, WeightVersion(0, 2))
    assert (await call.read()).stage == pb.LOAD_STAGE_READY
    [completion] = await client.sample(1)
    setting.check(completion, 1)
    await asyncio.to_thread(sender.send)
    done = await call.read()
    sender.group.close()
    assert done.stage == pb.LOAD_STAGE_DONE and done.pause_s == done.load_s < TIMEOUT_S / 2
    [completion] = await client.sample(1)
    setting.check(completion, 2)


async def test_a_load_that_fails_harms_no_completion_and_the_next_one_succeeds(
    client: Client, setting: Setting
) -> None:
    await client.publish(setting.adapters[1], 1)
    await client.pause()
    sampling = await in_flight(client, seed=1, max_tokens=40)
    _, error, _ = await client.wait_for_nothing(setting.adapters[2], 2, timeout_s=2)
    assert isinstance(error, DeadlineExceeded), error
    assert (await client.status()).status.state == worker_pb2.WORKER_STATE_STALE
    await client.publish(setting.adapters[2], 2)
    await client.resume()
    [completion] = await sampling
    setting.check(completion, 1)
    [completion] = await client.sample(1)
    setting.check(completion, 2)


async def test_the_weights_of_the_whole_model_are_refused(client: Client, setting: Setting) -> None:
    sender = Sender(setting.generator, weights_of(setting.base))
    with pytest.raises(InvalidArgument, match=r"has no tensor 'model\.embed_tokens\.weight'"):
        await client.stub.JoinWeightGroup(sender.join_request(), timeout=TIMEOUT_S)
