"""Families with scales, states and shared keys in real vLLM: as it loads their files, and after publishes."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.packages import skip_without
from tests.support.published_experts import publish_moved
from tests.support.real_generator import gap
from tests.support.tiny_families import save_family

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

pytest.importorskip("torch")
skip_without("vllm")

HEADS_OF_32: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
LATENT: dict[str, Any] = {
    "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "qk_head_dim": 192, "head_dim": 64,
}  # fmt: skip
CONVOLUTIONS: dict[str, Any] = HEADS_OF_32 | {
    "block_auto_adjust_ff_dim": False, "conv_dim": 64, "conv_dim_out": 64, "block_dim": 64, "block_ff_dim": 128,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "granite": HEADS_OF_32,
    "granite4": HEADS_OF_32,
    "granite4-dense": HEADS_OF_32,
    "falcon-h1": {},
    "gemma4-e": {},
    "minicpm3": {
        "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32, "qk_head_dim": 64, "head_dim": 32,
    },
    "olmoe": {"num_attention_heads": 2, "num_key_value_heads": 2},
    "lfm2": CONVOLUTIONS,
    "lfm2-moe": CONVOLUTIONS,
    "cohere2": HEADS_OF_32,
    "deepseek-v2": LATENT,
    "deepseek-v3": LATENT | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "glm4.7-flash": LATENT,
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_engine_computes_what_the_model_does_as_loaded_and_as_published(family: str, tmp_path: Path) -> None:
    model = save_family(family, tmp_path / "model", **FAMILIES[family])
    found = await publish_moved(tmp_path, model)
    assert gap(found.before, found.after) > 0.5, "the weights hardly moved"
    for (engine, expected), when in zip(found.pairs, ("as loaded", "published", "moved"), strict=True):
        assert gap(engine, expected) < 1e-4, f"{when}: {gap(engine, expected):.2g} nats"
