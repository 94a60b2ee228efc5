"""Measures what a layer with the fused modules keeps for the backward pass, in bytes per token; prints JSON.

The models run on a CPU, as in `operation_counts`. Weights and their casts do not count.
"""

import json
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, Qwen2Config, Qwen3Config

from services.learner.model import attention, fused_modules, logprobs
from services.learner.model.attention import register_attention
from services.learner.model.fused_modules import fuse_modules
from services.learner.model.packing import sequence_row
from services.learner.model.policy import Policy
from tests.support.triton_programs import counted_kernels
from tests.unit.services.learner.model.operation_counts import flash_attention

SIZES = {
    "vocab_size": 512, "hidden_size": 256, "intermediate_size": 1408, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 32,
}  # fmt: skip
NUM_TOKENS = 601
"""The length of a row. No width of the models has this divisor, so it tells activations from weights."""
MODELS: dict[str, type[PreTrainedConfig]] = {"qwen2": Qwen2Config, "qwen3": Qwen3Config}
ROWS = {"one": [601], "three": [300, 200, 101]}
"""Lengths of the sequences of a row, by their number."""


def kept_bytes(kind: type[PreTrainedConfig], num_layers: int, lengths: list[int]) -> int:
    lm = AutoModelForCausalLM.from_config(kind(**SIZES, num_hidden_layers=num_layers), dtype=torch.float32)
    lm.set_attn_implementation(register_attention("sdpa"))
    fuse_modules(lm)
    policy = Policy(lm, compute_dtype=torch.bfloat16, logits_chunk_tokens=NUM_TOKENS)
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.numel() % NUM_TOKENS == 0:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        mock.patch.object(logprobs, "can_run_kernels", lambda device: True),
        mock.patch.object(fused_modules, "can_run_kernels", lambda device: True),
        mock.patch.object(attention, "_has_flash", lambda q: True),
        mock.patch.object(attention, "varlen_attn", flash_attention),
        counted_kernels(),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        scored = policy(sequence_row([np.zeros(length, np.int32) for length in lengths]), 1.0)
    del scored
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def main() -> None:
    found = {
        name: {
            row: (kept_bytes(kind, 3, lengths) - kept_bytes(kind, 2, lengths)) / NUM_TOKENS
            for row, lengths in ROWS.items()
        }
        for name, kind in MODELS.items()
    }
    print(json.dumps({"sizes": SIZES, "kept": found}))


if __name__ == "__main__":
    main()
