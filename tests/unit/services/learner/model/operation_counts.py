"""Counts the operations of a row, forward and backward, as a GPU would run them, and prints them as JSON.

The number does not depend on widths, so the models are narrow. They run on a CPU, where the learner chooses as on a
GPU: Triton's interpreter runs the fused kernels (TRITON_INTERPRET=1).
"""

import json
from collections.abc import Callable
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, Olmo3Config, PreTrainedConfig, Qwen2Config, Qwen3MoeConfig

from services.learner.model import attention, fused_modules, logprobs
from services.learner.model.adapters import add_adapters
from services.learner.model.attention import register_attention
from services.learner.model.fused_modules import fuse_modules
from services.learner.model.packing import PackedRow, sequence_row
from services.learner.model.policy import Policy
from services.learner.model.trained_products import TrainedProducts
from shoal.config.tables.learner import LearnerConfig
from shoal.rollout import Support
from tests.support.operations import Operations
from tests.support.triton_programs import counted_kernels

ROW_TOKENS = 600
"""More than 256, up to which attention on a CPU is not the fused kernel."""
NARROW = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
QWEN = Qwen2Config(**NARROW, num_hidden_layers=28, tie_word_embeddings=True)
"""As deep as Qwen2.5-1.5B."""
OLMO = Olmo3Config(**NARROW, num_hidden_layers=32, sliding_window=128)
"""As deep as OLMo 3 7B: three quarters of the layers have a sliding window."""
EXPERTS = Qwen3MoeConfig(**NARROW, num_hidden_layers=48, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
"""As deep as Qwen3-30B-A3B. The number of experts changes nothing."""
GATHERS = ("aten.index_select", "aten.index_add", "aten.index.Tensor", "aten.index_put")


def one_sequence() -> PackedRow:
    return sequence_row([np.zeros(ROW_TOKENS, np.int32)])


def eight_sequences() -> PackedRow:
    return sequence_row([np.zeros(length * ROW_TOKENS // 8, np.int32) for length in range(4, 12)])


def with_supports() -> PackedRow:
    sizes = np.full(ROW_TOKENS - 100, 20, np.int32)  # The first 100 tokens are the prompt.
    return sequence_row([np.zeros(ROW_TOKENS, np.int32)], [Support(np.zeros(sizes.sum(), np.int32), sizes)])


CASES: dict[str, tuple[PreTrainedConfig, Callable[[], PackedRow], int]] = {
    "one sequence": (QWEN, one_sequence, 0),
    "eight sequences": (QWEN, eight_sequences, 0),
    "windows": (OLMO, one_sequence, 0),
    "supports": (QWEN, with_supports, 0),
    "adapters": (QWEN, one_sequence, 16),
    "experts": (EXPERTS, one_sequence, 0),
}
"""Shape of the model, row, and rank of the adapters, by name."""


def flash_attention(query: Tensor, key: Tensor, value: Tensor, *_: object, scale: float, **__: object) -> Tensor:
    """Stands for torch's flash kernel: one operation in each pass."""
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)[0].transpose(0, 1)


def count(config: PreTrainedConfig, num_layers: int, make_row: Callable[[], PackedRow], rank: int) -> dict[str, int]:
    """Counts the operations of a forward and a backward pass, and some kinds of them."""
    settings = LearnerConfig.model_validate({"compute_dtype": "bfloat16", "lora": {"rank": rank}})
    shape = type(config)(**config.to_dict() | {"num_hidden_layers": num_layers, "layer_types": None})
    lm = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16 if rank else torch.float32)
    if rank:
        add_adapters(lm, settings.lora, seed=0)
    lm.set_attn_implementation(register_attention("sdpa"))
    fuse_modules(lm)
    products = TrainedProducts()
    chunk_tokens = settings.chunk_tokens(1, on_cpu=False)
    policy = Policy(lm, compute_dtype=torch.bfloat16, logits_chunk_tokens=chunk_tokens, products=products)
    row = make_row()
    with (
        mock.patch.object(logprobs, "can_run_kernels", lambda device: True),
        mock.patch.object(fused_modules, "can_run_kernels", lambda device: True),
        mock.patch.object(attention, "_has_flash", lambda q: True),
        mock.patch.object(attention, "varlen_attn", flash_attention),
        counted_kernels() as kernels,
        products.kept(),
    ):
        for _ in range(2):
            kernels.clear()
            with Operations() as operations:
                policy(row, 1.0)[0].sum().backward()
    del operations.counts["shoal.token_logprobs.default"], operations.counts["shoal.token_logprobs_backward.default"]
    return {
        "all": operations.counts.total() + kernels.total(),
        "weight casts": operations.num_weight_casts,
        "grouped products": operations.counts["aten._grouped_mm.default"],
        "gathers": sum(number for name, number in operations.counts.items() if name.startswith(GATHERS)),
    }


def main() -> None:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, (config, make_row, rank) in CASES.items():
        # Four layers more, since the kinds of OLMo 3's layers repeat after four.
        some, more = (count(config, num_layers, make_row, rank) for num_layers in (4, 8))
        layer = {part: (more[part] - some[part]) / 4 for part in some}
        whole = {part: more[part] + (config.num_hidden_layers - 8) * layer[part] for part in some}
        found[name] = {"whole": whole, "layer": layer}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
