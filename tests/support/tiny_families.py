"""Tiny configurations of the model families that people train, by the names that this project gives them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedConfig

from tests.support.tiny_model import IM_END, IM_START, PAD, make_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.1, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_HEADS = {"head_dim": 32}
_SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_PER_LAYER = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 96}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DELTA = {
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "linear_attention", "full_attention"],
}  # fmt: skip
_MAMBA = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_heads": 4, "mamba_d_head": 32}
_LATENT = {
    "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "num_key_value_heads": 4,
}  # fmt: skip
_ROUTED = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
}  # fmt: skip


def _text(name: str, **settings: Any) -> Callable[[], PreTrainedConfig]:
    num_layers = len(settings.get("layer_types", range(SIZES["num_hidden_layers"])))
    return lambda: getattr(transformers, name)(**SIZES | {"num_hidden_layers": num_layers} | settings)


FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": _text("LlamaConfig"),
    "mistral": _text("MistralConfig", sliding_window=8),
    "ministral3": _text("Ministral3Config", **_HEADS),
    "qwen2": _text("Qwen2Config"),
    "qwen3": _text("Qwen3Config", **_HEADS),
    "qwen3-moe": _text("Qwen3MoeConfig", **_HEADS, **_EXPERTS),
    "qwen3-next": _text("Qwen3NextConfig", **_HEADS, **_EXPERTS, **_DELTA, shared_expert_intermediate_size=32),
    "qwen3.5": _text("Qwen3_5TextConfig", **_HEADS, **_DELTA),
    "qwen3.5-moe": _text("Qwen3_5MoeTextConfig", **_HEADS, **_DELTA, **_EXPERTS, shared_expert_intermediate_size=32),
    "gemma2": _text("Gemma2Config", **_HEADS, query_pre_attn_scalar=32, **_SLIDING),
    "gemma3": _text("Gemma3TextConfig", **_HEADS, query_pre_attn_scalar=32, **_SLIDING),
    "gemma4": _text("Gemma4TextConfig", **_HEADS, **_SLIDING, **_PER_LAYER),
    "gemma4-e": _text(
        "Gemma4TextConfig", **_HEADS, **_SLIDING | {"layer_types": ["sliding_attention", "full_attention"] * 2},
        num_kv_shared_layers=2, **_PER_LAYER,
    ),
    "phi3": _text("Phi3Config"),
    "olmo2": _text("Olmo2Config"),
    "olmo3": _text("Olmo3Config", **_SLIDING),
    "olmo-hybrid": _text("OlmoHybridConfig", **_DELTA),
    "smollm3": _text("SmolLM3Config"),
    "granite": _text(
        "GraniteConfig", logits_scaling=4.0, embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.2
    ),
    "granitemoe": _text("GraniteMoeConfig", logits_scaling=4.0, num_local_experts=4, num_experts_per_tok=2),
    "granite4": _text(
        "GraniteMoeHybridConfig", logits_scaling=4.0, num_local_experts=4, num_experts_per_tok=2,
        shared_intermediate_size=64, layer_types=["mamba", "mamba", "attention"], **_MAMBA,
    ),
    "granite4-dense": _text(
        "GraniteMoeHybridConfig", logits_scaling=4.0, num_local_experts=0, shared_intermediate_size=64,
        layer_types=["mamba", "mamba", "attention"], **_MAMBA,
    ),
    "glm4": _text("Glm4Config", **_HEADS),
    "glm4.5-moe": _text("Glm4MoeConfig", **_HEADS, **_ROUTED),
    "glm4.7-flash": _text("Glm4MoeLiteConfig", **_LATENT, **_ROUTED),
    "deepseek-v2": _text("DeepseekV2Config", **_LATENT, **_ROUTED),
    "deepseek-v3": _text("DeepseekV3Config", **_LATENT, **_ROUTED),
    "gpt-oss": _text("GptOssConfig", **_HEADS, **_SLIDING, num_local_experts=4, num_experts_per_tok=2),
    "mixtral": _text("MixtralConfig", num_local_experts=4),
    "olmoe": _text("OlmoeConfig", num_experts=4, num_experts_per_tok=2),
    "minicpm3": _text("MiniCPM3Config", **_LATENT),
    "minimax-m2": _text("MiniMaxM2Config", **_HEADS, num_local_experts=4, num_experts_per_tok=2),
    "nemotron-h": _text(
        "NemotronHConfig", **_HEADS, layers_block_type=["mamba", "moe", "attention"], ssm_state_size=16,
        mamba_num_heads=4, mamba_head_dim=32, n_groups=1, conv_kernel=4, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=32, moe_shared_expert_intermediate_size=32, n_group=1, topk_group=1,
    ),
    "falcon-h1": _text(
        "FalconH1Config", **_HEADS, **_MAMBA | {"mamba_d_ssm": 128}, mamba_n_groups=1, lm_head_multiplier=0.5
    ),
    "lfm2": _text("Lfm2Config", layer_types=["conv", "full_attention", "conv"], conv_L_cache=3),
    "lfm2-moe": _text(
        "Lfm2MoeConfig", layer_types=["conv", "full_attention", "conv"], conv_L_cache=3, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=32, num_dense_layers=1,
    ),
    "cohere": _text("CohereConfig", logit_scale=0.25),
    "cohere2": _text("Cohere2Config", logit_scale=0.25, **_SLIDING, **_HEADS),
    "kimi-linear": _text(
        "KimiLinearConfig", **_LATENT, layer_types=["linear_attention", "linear_attention", "full_attention"],
        linear_attn_config={"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4},
        num_experts=4, num_experts_per_token=2, moe_intermediate_size=32, first_k_dense_replace=1,
    ),
    "seed-oss": _text("SeedOssConfig", **_HEADS),
    "hunyuan": _text("HunYuanDenseV1Config", **_HEADS),
    "exaone4": _text("Exaone4Config", **_SLIDING),
    "ernie4.5": _text("Ernie4_5Config", **_HEADS),
    "ernie4.5-moe": _text(
        "Ernie4_5_MoeConfig", **_HEADS, moe_num_experts=4, moe_k=2, moe_intermediate_size=32, moe_layer_start_index=1
    ),
    "starcoder2": _text("Starcoder2Config"),
    "apertus": _text("ApertusConfig"),
    "arcee": _text("ArceeConfig"),
    "bamba": _text("BambaConfig", attn_layer_indices=[2], **_MAMBA),
    "hyperclovax": _text("HyperCLOVAXConfig", logits_scaling=0.5),
}  # fmt: skip
"""Configurations of language models, without towers for other media."""


_TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
_QWEN_TOWER = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 8, "out_hidden_size": 64,
    "deepstack_visual_indexes": [0, 1],
}  # fmt: skip
_MROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [8, 4, 4], "rope_theta": 10000.0}}


def _whole(name: str, text: dict[str, Any], tower: dict[str, Any], **settings: Any) -> Callable[[], PreTrainedConfig]:
    num_layers = len(text.get("layer_types", range(SIZES["num_hidden_layers"])))
    text = SIZES | {"num_hidden_layers": num_layers} | text
    return lambda: getattr(transformers, name)(text_config=text, vision_config=tower, **settings)


READERS: dict[str, Callable[[], PreTrainedConfig]] = {
    "qwen3.5-whole": _whole("Qwen3_5Config", _HEADS | _DELTA, _QWEN_TOWER),
    "qwen3.5-moe-whole": _whole(
        "Qwen3_5MoeConfig", _HEADS | _DELTA | _EXPERTS | {"shared_expert_intermediate_size": 32}, _QWEN_TOWER
    ),
    "qwen3-vl": _whole("Qwen3VLConfig", _HEADS | _MROPE, _QWEN_TOWER),
    "qwen2.5-vl": _whole(
        "Qwen2_5_VLConfig",
        {"hidden_size": 128, "rope_parameters": {"rope_type": "default", "mrope_section": [8, 4, 4]}},
        _QWEN_TOWER | {"out_hidden_size": 128, "fullatt_block_indexes": [1]},
    ),
    "gemma3-whole": _whole(
        "Gemma3Config", _HEADS | {"query_pre_attn_scalar": 32} | _SLIDING, _TOWER | {"image_size": 32},
        mm_tokens_per_image=4, image_token_index=95, boi_token_index=94, eoi_token_index=93,
    ),
    "gemma4-whole": _whole("Gemma4Config", _HEADS | _SLIDING | _PER_LAYER, _TOWER),
    "ministral3-whole": _whole(
        "Mistral3Config", _HEADS | {"model_type": "ministral3"}, _TOWER | {"image_size": 32, "model_type": "pixtral"}
    ),
}  # fmt: skip
"""Configurations of checkpoints that can also read images."""


def save_family(family: str, folder: Path, *, seed: int = 0, **changes: Any) -> Any:
    """Saves a random model of a family, with a byte-level tokenizer, and returns it in float32.

    `changes` replace fields of the configuration, such as sizes that vLLM's kernels on a CPU do not take.
    """
    import torch

    tokenizer = make_tokenizer()
    config = FAMILIES[family]()
    ids = {"bos": IM_START, "eos": IM_END, "pad": PAD}
    changes = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(token) for name, token in ids.items()} | changes
    for name, value in {"vocab_size": len(tokenizer), "max_position_embeddings": 2048, **changes}.items():
        setattr(config, name, value)
    if hasattr(config, "vocab_size_per_layer_input"):
        config.vocab_size_per_layer_input = len(tokenizer)
    torch.manual_seed(seed)
    lm = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    for parameter in lm.parameters():
        if parameter.ndim >= 2:
            # A fresh model's layers add nothing to their input, which would hide differences.
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return lm.eval()
