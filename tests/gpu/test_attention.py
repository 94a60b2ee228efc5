"""The attention kernels of a GPU against the textbook formula on the same GPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen3Config

from services.learner.model import attention
from services.learner.model.packing import pack_for_rank
from services.learner.model.policy import load_policy
from shoal.config.tables.learner import LearnerConfig
from tests.support.train_batches import make_group

TINY = {
    "vocab_size": 256,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "initializer_range": 0.05,
    "pad_token_id": 0,
}
PLAIN = [LlamaConfig(**TINY), Qwen3Config(**TINY), MistralConfig(**TINY, sliding_window=100)]


def results(folder: Path, **settings: Any) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities of a packed row, and the gradient of the first layer's queries."""
    rng = np.random.default_rng(0)
    groups = [make_group("g", num_prompt_tokens=300, completion_lengths=[700, 650, 90, 3], rng=rng)]
    (row,), _ = pack_for_rank(groups, max_tokens=4096, rank=0, num_ranks=1)
    policy = load_policy(folder, LearnerConfig(**settings)).to("cuda")
    logprobs = policy(row.to(torch.device("cuda")), 1.0)[0]
    logprobs.sum().backward()
    return logprobs.detach(), policy.lm.model.layers[0].self_attn.q_proj.weight.grad


def check(folder: Path, implementation: str, compute_dtype: str) -> None:
    expected, expected_gradient = results(folder, attention="eager", compute_dtype=compute_dtype)
    found, gradient = results(folder, attention=implementation, compute_dtype=compute_dtype)
    bound, gradient_bound = (0.1, 0.1) if compute_dtype == "bfloat16" else (5e-3, 5e-3)
    difference = float((found - expected).abs().max())
    error = float((gradient - expected_gradient).norm() / expected_gradient.norm())
    assert difference < bound, f"log-probabilities differ by up to {difference:.2g}"
    assert error < gradient_bound, f"the gradient of the queries differs by {error:.2g} of its norm"


@pytest.mark.parametrize("compute_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("config", PLAIN, ids=lambda config: config.model_type)
def test_sdpa_computes_what_eager_attention_computes(
    config: PreTrainedConfig, compute_dtype: str, tmp_path: Path
) -> None:
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    check(tmp_path, "sdpa", compute_dtype)


def test_a_window_needs_memory_for_its_tokens_alone() -> None:
    heads, length, window = 8, 16384, 1024
    q = torch.randn(1, heads, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k = torch.randn(1, heads // 4, length, 64, device="cuda", dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attention._sdpa(q, k, k, scaling=None, sliding_window=window, softcap=None).sum().backward()
    used = torch.cuda.max_memory_allocated() - before
    # A mask alone would take a byte for each pair of tokens.
    assert used < length**2, f"{used / 2**20:.0f} MiB for {heads} heads of {length} tokens"
