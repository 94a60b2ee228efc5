"""What a real engine computes again of an episode's context at each turn."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.generator.vllm_engine import VllmEngine
from services.generator.vllm_start import CPU_BLOCK_TOKENS
from shoal.rollout import SamplingParams, WeightVersion
from tests.support.configs import run_config
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.timeout(900)

NUM_EPISODES, NUM_TURNS = 8, 6
PROMPT_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 200, 24, 60


class CountingEngine(VllmEngine):
    """Counts the tokens of each request that the engine took from its cache, by its own counter."""

    num_cached: dict[tuple[int, ...], int]

    async def _request(
        self, token_ids: Sequence[int], make_params: Callable[[], Any], lora: Any
    ) -> AsyncGenerator[Any, None]:
        async with aclosing(super()._request(token_ids, make_params, lora)) as outputs:
            async for output in outputs:
                if output.num_cached_tokens is not None:
                    self.num_cached[tuple(token_ids)] = output.num_cached_tokens
                yield output


async def test_a_turn_computes_what_is_new_and_at_most_a_block_of_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_config(
        str(make_tiny_model(tmp_path / "model")),
        data={"sources": [{"task": "arithmetic"}], "max_prompt_tokens": PROMPT_TOKENS},
        sampling={"max_completion_tokens": 1000},
        generator={"dtype": "float32", "cpu_kv_cache_gib": 0.25, "max_num_seqs": 16},
    )
    # The weights with which an engine starts have no version of a run.
    monkeypatch.setattr(WeightVersion, "parse", lambda text: WeightVersion(0, 0))
    engine = await CountingEngine.start(config)
    engine.num_cached = {}
    rows: list[tuple[int, int, int, int]] = []

    async def play(number: int) -> None:
        draw = np.random.default_rng(number)
        context, num_before = draw.integers(256, size=PROMPT_TOKENS).tolist(), 0
        for turn in range(1, NUM_TURNS + 1):
            sampling = SamplingParams(1.0, TURN_TOKENS, ())
            sample = await engine.sample(context, sampling, number * 100 + turn, lambda run: None)
            computed = len(context) - engine.num_cached[tuple(context)]
            rows.append((turn, len(context), len(context) - num_before, computed))
            context += sample.tokens.token_ids.tolist()
            num_before = len(context)
            context += draw.integers(256, size=ANSWER_TOKENS).tolist()

    try:
        await asyncio.gather(*(play(number) for number in range(NUM_EPISODES)))
    finally:
        await engine.close()
    for turn in range(1, NUM_TURNS + 1):
        of_turn = np.array([row[1:] for row in rows if row[0] == turn])
        in_context, new, computed = of_turn.mean(axis=0)
        print(f"turn {turn}: {in_context:.0f} tokens in context, {new:.0f} new, {computed:.0f} computed")
        # The engine keeps whole blocks, and never the key and value of the last token that it sampled.
        assert (of_turn[:, 2] <= of_turn[:, 1] + CPU_BLOCK_TOKENS).all(), of_turn
    total = np.array([row[1:] for row in rows]).sum(axis=0)
    print(f"all turns: {total[2]} computed of {total[0]} in contexts ({total[2] / total[0]:.0%}); {total[1]} were new")
