"""A batch that a real engine samples several times, beside a busy event loop: the same tokens and log-probabilities."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from services.generator.deterministic_engine import DeterministicEngine
from services.generator.engine import Sample
from services.generator.vllm_engine import VllmEngine
from shoal.rollout import FinishReason, SamplingParams, WeightVersion
from tests.support.configs import run_config
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.timeout(600)

NUM_TOKENS = 48
NUM_TIMES = 6
GROUP_SIZE = 6
PROMPTS = [np.random.default_rng(seed).integers(256, size=70 + seed).tolist() for seed in range(4)]
"""Longer than two blocks of the cache, which the completions of a group share."""
STOP_STRINGS = ("a", "e", "0", "1", "t")
"""Tokens of the tiny model: some 4 of 10 completions have one."""

TOO_SMALL_GIB = 0.004
"""For 1,048 tokens (4 KiB each), where a batch has up to 2,900: vLLM makes completions wait, or begin again."""


@contextlib.asynccontextmanager
async def busy_loop(longest_s: float) -> AsyncIterator[None]:
    """Keeps the event loop from its work for random times, and so what comes from the engine from being read."""

    async def hold_up() -> None:
        while True:
            time.sleep(longest_s * random.random())  # noqa: ASYNC251  (it shall block the loop)
            await asyncio.sleep(0.001)

    holding_up = asyncio.create_task(hold_up())
    yield
    holding_up.cancel()


async def sample_batch(engine: VllmEngine, stop_strings: tuple[str, ...], *, longest_s: float) -> list[Sample]:
    """Samples the groups of PROMPTS as a generator samples a batch."""
    sampling = SamplingParams(1.0, NUM_TOKENS, (), stop_strings=stop_strings)
    await engine.pause(clear_cache=True)
    tasks = [
        asyncio.create_task(engine.sample(prompt, sampling, seed, lambda run: None))
        for number, prompt in enumerate(PROMPTS)
        for seed in range(GROUP_SIZE * number, GROUP_SIZE * (number + 1))
    ]
    await engine.admitted()
    await engine.resume()
    async with busy_loop(longest_s):
        return await asyncio.gather(*tasks)


def bits_of(samples: list[Sample]) -> list[tuple[bytes, bytes]]:
    return [(each.tokens.token_ids.tobytes(), each.tokens.logprobs.tobytes()) for each in samples]


@pytest.mark.parametrize(
    ("num_threads", "cache_gib"),
    [(1, 0.25), (2, 0.25), (1, TOO_SMALL_GIB)],
    ids=["one thread", "two threads", "small cache"],
)
async def test_a_batch_is_sampled_again_bit_for_bit_also_with_stop_strings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_threads: int, cache_gib: float
) -> None:
    config = run_config(
        str(make_tiny_model(tmp_path / "model", heads=8)),
        data={"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 80},
        sampling={"max_completion_tokens": NUM_TOKENS, "stop_strings": STOP_STRINGS},
        grpo={"max_staleness": 0},
        generator={"dtype": "float32", "cpu_kv_cache_gib": cache_gib, "max_num_seqs": 32},
        learner={"compute_dtype": "float32"},
        run={"deterministic": True, "num_threads": num_threads},
    )
    # The weights with which an engine starts have no version of a run.
    monkeypatch.setattr(WeightVersion, "parse", lambda text: WeightVersion(0, 0))
    engine = await DeterministicEngine.start(config)
    try:
        for stop_strings in ((), STOP_STRINGS):
            found = [await sample_batch(engine, stop_strings, longest_s=n % 2 * 0.05) for n in range(NUM_TIMES)]
            stopped = sum(sample.finish_reason is FinishReason.STOP for sample in found[0])
            assert (stopped > 3) == bool(stop_strings), f"{stopped} of {len(found[0])} completions were stopped"
            for number, again in enumerate(found[1:], start=2):
                pairs = zip(bits_of(found[0]), bits_of(again), strict=True)
                num_others = sum(one != other for one, other in pairs)
                assert not num_others, f"{num_others} of {len(again)} completions differ the {number}th time"
        # Alone in the engine, a completion has the same bits whether vLLM ends it or not.
        sampling = SamplingParams(1.0, NUM_TOKENS, (), stop_strings=STOP_STRINGS)
        for seed in range(GROUP_SIZE):
            pair = []
            for kind in (DeterministicEngine, VllmEngine):
                await engine.pause(clear_cache=True)
                await engine.resume()
                pair.append(await kind.sample(engine, PROMPTS[0], sampling, seed, lambda run: None))
            assert bits_of(pair[:1]) == bits_of(pair[1:]) and pair[0].finish_reason is pair[1].finish_reason
    finally:
        await engine.close()
