"""Which families of `tests.support.tiny_families` vLLM computes on a CPU, in which sizes, and which are refused."""

from typing import Any

_HEADS_OF_32: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
_NAMED_HEADS: dict[str, Any] = _HEADS_OF_32 | {"head_dim": 32}
_LATENT: dict[str, Any] = {
    "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "qk_head_dim": 192, "head_dim": 64,
}  # fmt: skip
_CONVOLUTIONS: dict[str, Any] = _HEADS_OF_32 | {
    "block_auto_adjust_ff_dim": False, "conv_dim": 64, "conv_dim_out": 64, "block_dim": 64, "block_ff_dim": 128,
}  # fmt: skip
_DELTA: dict[str, Any] = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
_ALL_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 4}
"""In bfloat16 a router would choose other experts where their scores are close."""

SERVED: dict[str, dict[str, Any]] = {
    "llama": _NAMED_HEADS,
    "mistral": _NAMED_HEADS,
    "ministral3": {},
    "qwen2": _NAMED_HEADS,
    "qwen3": {},
    "qwen3-moe": {},
    "qwen3-next": _DELTA | _ALL_EXPERTS,
    "qwen3.5": _DELTA,
    "qwen3.5-moe": _DELTA | _ALL_EXPERTS,
    "gemma2": {},
    "gemma3": {},
    "gemma4": {},
    "gemma4-e": {},
    "phi3": _HEADS_OF_32,
    "olmo2": _NAMED_HEADS,
    "olmo3": _NAMED_HEADS,
    "smollm3": _NAMED_HEADS,
    "granite": _HEADS_OF_32,
    "granitemoe": _HEADS_OF_32,
    "granite4": _HEADS_OF_32,
    "granite4-dense": _HEADS_OF_32,
    "glm4": {},
    "glm4.5-moe": {},
    "glm4.7-flash": _LATENT,
    "deepseek-v2": _LATENT,
    "deepseek-v3": _LATENT | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "mixtral": _NAMED_HEADS,
    "olmoe": {"num_attention_heads": 2, "num_key_value_heads": 2},
    "minicpm3": {
        "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32, "qk_head_dim": 64, "head_dim": 32,
    },
    "falcon-h1": {},
    "lfm2": _CONVOLUTIONS,
    "lfm2-moe": _CONVOLUTIONS,
    "cohere": _NAMED_HEADS,
    "cohere2": _HEADS_OF_32,
    "seed-oss": {},
    "hunyuan": {},
    "exaone4": _NAMED_HEADS,
    "ernie4.5": {},
    "starcoder2": _NAMED_HEADS,
    "apertus": _NAMED_HEADS,
    "arcee": _NAMED_HEADS,
    "hyperclovax": _NAMED_HEADS,
}  # fmt: skip
"""The families that vLLM computes on a CPU, each with what it has in place of the sizes of `FAMILIES`."""
BFLOAT16 = ("qwen3-next", "qwen3.5", "qwen3.5-moe", "qwen3.5-whole", "qwen3.5-moe-whole")
"""Families that vLLM computes on a CPU in bfloat16 alone."""
REFUSED = {
    "ernie4.5-moe": "ernie4_5_moe, which cannot .* on CPU: its routers choose experts by a score with a bias",
    "bamba": "bamba, which cannot be trained: vLLM .* no longer has its recurrent layers",
    "gpt-oss": "gpt_oss, which cannot be trained: vLLM .* loads its experts .* in a way that a publish cannot take",
    "kimi-linear": "kimi_linear, which cannot .* on CPU: .* its recurrent layers for GPUs alone",
    "minimax-m2": "minimax_m2, which cannot .* on CPU: its routers choose experts by a score with a bias",
    "nemotron-h": "nemotron_h, which cannot .* on CPU: its experts have no gate",
    "olmo-hybrid": "olmo_hybrid, which cannot .* on CPU: .* its recurrent layers for GPUs alone",
}
"""The families that a generator on a CPU refuses, each with words of the reason."""

NEW_IN_TRANSFORMERS_5 = (
    "ministral3", "qwen3.5", "qwen3.5-moe", "gemma4", "gemma4-e", "olmo-hybrid", "glm4.7-flash", "minicpm3",
    "minimax-m2", "nemotron-h", "lfm2-moe", "kimi-linear", "hyperclovax", "qwen3.5-whole", "qwen3.5-moe-whole",
    "gemma4-whole", "ministral3-whole",
)  # fmt: skip
"""The families that transformers 4.57 does not know."""


def is_trained(family: str) -> bool:
    """Returns whether the learner takes a family."""
    return "cannot be trained" not in REFUSED.get(family, "")


def dtype_of(family: str) -> str:
    """Returns the type in which vLLM computes a family on a CPU."""
    return "bfloat16" if family in BFLOAT16 else "float32"


def tolerance_of(family: str) -> float:
    """Returns the largest difference of log-probabilities between the engine and the learner's model."""
    return 0.2 if family in BFLOAT16 else 1e-4
