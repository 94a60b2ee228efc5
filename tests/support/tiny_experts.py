"""Tiny random mixtures of experts of several families."""

from pathlib import Path
from typing import Any

_SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "num_experts_per_tok": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
FAMILIES: dict[str, dict[str, Any]] = {
    # Experts of 40 values: vLLM's kernel for CPUs pads them to 64.
    "mixtral": {"num_local_experts": 4, "intermediate_size": 40},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 32, "norm_topk_prob": True},
    "glm4_moe": {
        "n_routed_experts": 4, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    },
    "olmoe": {"num_experts": 4},
    # vLLM reads the last two, which transformers' configuration lacks and that of the released files has.
    "minimax_m2": {"num_local_experts": 4, "rotary_dim": 32, "scoring_func": "sigmoid", "use_routing_bias": True},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_layer_start_index": 1},
    "gpt_oss": {"num_local_experts": 4, "layer_types": ["sliding_attention", "full_attention"]},
}  # fmt: skip
"""What each family has beside `_SIZES`, by its name in transformers."""


def make_tiny_experts(folder: Path, family: str, *, seed: int = 1) -> Any:
    """Saves a random model of a family, and returns it as it is loaded from the folder, in float32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **(_SIZES | FAMILIES[family]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                torch.nn.init.normal_(parameter, std=0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                torch.nn.init.normal_(buffer, std=0.1)
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def published(model: Any) -> dict[str, Any]:
    from shoal.models.file_names import FileNames

    return dict(FileNames(model).tensors((name, value.detach()) for name, value in model.named_parameters()))


def move(model: Any, *, seed: int = 2) -> None:
    """Moves every parameter by 0.3 of its standard deviation, or by 0.03 where its values are equal."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            deviation = float(parameter.std()) if parameter.numel() > 1 else 0.0
            parameter += 0.3 * (deviation or 0.1) * torch.randn(parameter.shape, generator=generator)
