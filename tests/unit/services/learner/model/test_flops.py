"""FLOPs of rows, against torch's own count of what the model runs, and against counts by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, MixtralConfig, Olmo3Config, Qwen2Config

from services.learner.model.adapters import add_adapters
from services.learner.model.attention import register_attention
from services.learner.model.flops import ModelFlops, Work, peak_of
from services.learner.model.packing import PackedRow, pack_for_rank, sequence_row
from services.learner.model.policy import Policy
from shoal.config.tables.learner import LearnerConfig
from tests.support.train_batches import make_groups, with_supports

LAYERS, HIDDEN, HEADS, SIZE, VOCABULARY = 3, 64, 4, 16, 300
SHAPE = {
    "hidden_size": HIDDEN, "intermediate_size": 128, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY,
}  # fmt: skip
LENGTH = 40
PAIR = 2 * 2 * HEADS * SIZE
"""FLOPs of a pair of tokens in one layer, forward: a product for its score, and one for its value."""


def one_sequence() -> PackedRow:
    row = sequence_row([np.arange(LENGTH, dtype=np.int32)])
    return replace(row, at_C=torch.arange(len(row.targets_C)))


def make(config: Any, rank: int = 0) -> Any:
    lm = AutoModelForCausalLM.from_config(config)
    lm.set_attn_implementation(register_attention("eager"))
    if rank:
        add_adapters(lm, LearnerConfig.model_validate({"lora": {"rank": rank}}).lora, seed=0)
    return lm


def counted_by_torch(lm: Any, row: PackedRow) -> int:
    policy = Policy(lm, compute_dtype=torch.float32, logits_chunk_tokens=1000)
    with FlopCounterMode(display=False) as counter:
        policy(row, 1.0)[0].sum().backward()
    return counter.get_total_flops()


def masked_flops(num_visible: int) -> int:
    """The FLOPs of the pairs that eager attention computes in one layer and then hides, in three passes."""
    return 3 * PAIR * (LENGTH * LENGTH - num_visible)


@pytest.mark.parametrize("ties", [False, True])
def test_the_flops_of_a_row_are_those_that_torch_counts_without_the_hidden_pairs(ties: bool) -> None:
    lm, row = make(Qwen2Config(**SHAPE, tie_word_embeddings=ties)), one_sequence()
    expected = counted_by_torch(lm, row) - LAYERS * masked_flops(LENGTH * (LENGTH + 1) // 2)
    assert ModelFlops(lm).of(row) == Work(LENGTH, expected)


def test_a_window_hides_the_pairs_that_are_further_apart() -> None:
    window = 8
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    lm = make(Olmo3Config(**SHAPE, sliding_window=window, layer_types=kinds))
    causal, windowed = LENGTH * (LENGTH + 1) // 2, window * (window + 1) // 2 + (LENGTH - window) * window
    expected = counted_by_torch(lm, one_sequence()) - masked_flops(causal) - 2 * masked_flops(windowed)
    assert ModelFlops(lm).of(one_sequence()).flops == expected


def test_a_frozen_matrix_has_no_gradient_and_an_adapter_counts_by_itself() -> None:
    lm, row, rank = make(Qwen2Config(**SHAPE), rank=2), one_sequence(), 2
    found = ModelFlops(lm).of(row).flops
    counted = counted_by_torch(lm, row) - LAYERS * masked_flops(LENGTH * (LENGTH + 1) // 2)
    # No gradient is computed for the input of the first layer's queries, keys and values, which is an embedding.
    widths = (HIDDEN, HIDDEN // 2, HIDDEN // 2)
    of_embeddings = sum(2 * LENGTH * (HIDDEN * width + HIDDEN * rank) for width in widths)
    assert found == counted + of_embeddings, f"{found:,} are counted, and torch runs {counted:,}"


def test_a_token_counts_for_the_experts_that_it_is_routed_to() -> None:
    few, many = (
        ModelFlops(make(MixtralConfig(**SHAPE, num_local_experts=8, num_experts_per_tok=num))).of(one_sequence()).flops
        for num in (1, 3)
    )
    assert many - few == LENGTH * LAYERS * 2 * 6 * (3 * HIDDEN * 128), f"{many - few:,} FLOPs for two more experts"


def test_completions_share_their_prompt_and_an_idle_row_counts_nothing() -> None:
    flops, groups = ModelFlops(make(Qwen2Config(**SHAPE))), make_groups(1, 3)
    [row], _ = pack_for_rank(groups, max_tokens=1000, rank=0, num_ranks=1)
    prompt, lengths = len(groups[0].prompt_token_ids), [r.completion.num_tokens for r in groups[0].rollouts]
    pairs = sum(range(prompt + 1)) + sum(prompt + at for length in lengths for at in range(1, length + 1))
    layer = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * HIDDEN // 2 + 3 * HIDDEN * 128
    num_tokens = prompt + sum(lengths)
    products = 6 * LAYERS * layer * num_tokens + 6 * sum(lengths) * HIDDEN * VOCABULARY
    assert flops.of(row) == Work(num_tokens, products + 3 * LAYERS * PAIR * pairs)
    [idle], _ = pack_for_rank(make_groups(1, 1), max_tokens=1000, rank=1, num_ranks=2)
    assert flops.of(idle) == Work(0, 0.0)


def test_only_the_logits_of_supports_count() -> None:
    flops = ModelFlops(make(Qwen2Config(**SHAPE)))
    groups = make_groups(2, 2)
    supported = with_supports(groups)
    [whole], _ = pack_for_rank(groups, max_tokens=1000, rank=0, num_ranks=1)
    [row], _ = pack_for_rank(supported, max_tokens=1000, rank=0, num_ranks=1)
    num_ids = sum(int(r.completion.support.counts.sum()) for g in supported for r in g.rollouts)  # type: ignore[union-attr]
    left_out = len(whole.targets_C) * VOCABULARY - num_ids
    assert flops.of(whole).flops - flops.of(row).flops == 6 * left_out * HIDDEN


def test_a_reference_is_a_forward_pass_without_adapters() -> None:
    plain = ModelFlops(make(Qwen2Config(**SHAPE)))
    row = one_sequence()
    passes = [plain.of(row, runs_reference=runs).flops for runs in (False, True)]
    assert passes[1] / passes[0] == pytest.approx(4 / 3), passes
    adapted = ModelFlops(make(Qwen2Config(**SHAPE), rank=2))
    forward = adapted.of(row, runs_reference=True).flops - adapted.of(row).flops
    assert forward == passes[1] - passes[0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("Tesla T4", None),
    ],
)
def test_a_known_gpu_has_the_rate_of_its_data_sheet(name: str, expected: float | None) -> None:
    assert peak_of(name) == expected
