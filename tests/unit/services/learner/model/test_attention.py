"""The choice of attention, and what the two kernels of a GPU are called with."""

import inspect
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Olmo3Config,
    PreTrainedConfig,
    Qwen3Config,
)

from services.learner.model import attention
from services.learner.model.attention import choose_attention, register_attention
from services.learner.model.packing import PackedRow, pack_for_rank, sequence_row
from services.learner.model.policy import Policy, load_policy
from shoal.config.tables.learner import LearnerConfig
from tests.support.train_batches import make_groups

BFLOAT16 = LearnerConfig(compute_dtype="bfloat16")
TINY = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "pad_token_id": 0,
}
KINDS = ["sliding_attention", "full_attention"]


class FlashAttention:
    """Stands for torch's flash kernel: its signature, its checks, and its result in textbook arithmetic."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def varlen_attn(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
    ) -> Tensor:
        """[T, H, D], [T, K, D] twice -> [T, H, D]. A query at i sees keys from i - left to i + right."""
        starts = cu_seq_q.tolist()
        self.calls.append({"lengths": [end - start for start, end in pairwise(starts)], "window": window_size})
        assert {query.dtype, key.dtype, value.dtype} == {torch.bfloat16} and cu_seq_q.dtype == torch.int32
        assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1, "contiguous heads"
        assert max_q == max_k == max(self.calls[-1]["lengths"]) and torch.equal(cu_seq_q, cu_seq_k)
        assert starts[-1] == len(query) == len(key) == len(value) and window_size[1] == 0
        assert enable_gqa == (query.shape[1] != key.shape[1])
        outputs = []
        for start, end in pairwise(starts):
            q, k, v = (x[start:end].float().transpose(0, 1) for x in (query, key, value))
            k, v = (x.repeat_interleave(len(q) // len(x), dim=0) for x in (k, v))
            scores = q @ k.transpose(1, 2) * (q.shape[-1] ** -0.5 if scale is None else scale)
            distance = torch.arange(end - start)[:, None] - torch.arange(end - start)
            visible = (distance >= 0) & ((window_size[0] < 0) | (distance <= window_size[0]))
            outputs.append((torch.softmax(scores.masked_fill(~visible, -torch.inf), -1) @ v).transpose(0, 1))
        return torch.cat(outputs).bfloat16()


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> FlashAttention:
    """A machine whose GPU has torch's flash kernel, except that it is the CPU that computes."""
    recorder = FlashAttention()
    monkeypatch.setattr(attention, "varlen_attn", recorder.varlen_attn)
    monkeypatch.setattr(attention, "_has_flash", lambda q: q.dtype == torch.bfloat16)
    monkeypatch.setattr(attention, "_SHORT_ON_CPU", 0)
    return recorder


def test_torchs_flash_attention_has_the_arguments_that_it_is_called_with() -> None:
    own = inspect.signature(FlashAttention().varlen_attn).parameters
    torchs = inspect.signature(varlen_attn).parameters
    assert own.keys() <= torchs.keys()
    assert list(own)[:7] == list(torchs)[:7]
    assert all(own[name].kind == torchs[name].kind for name in own)


MODELS = {
    "llama": (LlamaConfig(**TINY), {(-1, 0)}),
    "qwen3": (Qwen3Config(**TINY), {(-1, 0)}),
    # A query itself and the two before it: the kernel counts those on its left.
    "mistral": (MistralConfig(**TINY, sliding_window=3), {(2, 0)}),
    "olmo3": (Olmo3Config(**TINY, sliding_window=5, layer_types=KINDS), {(4, 0), (-1, 0)}),
}
"""Models, and the windows of their layers."""


@pytest.mark.parametrize("name", MODELS)
def test_short_sequences_of_many_lengths_are_one_call_of_the_flash_kernel_in_each_layer(
    name: str, tmp_path: Path, flash: FlashAttention
) -> None:
    config, windows = MODELS[name]
    (row,), _ = pack_for_rank(make_groups(num_groups=2, group_size=3), max_tokens=4096, rank=0, num_ranks=1)
    assert len(row.layout.buckets) > 1
    assert_flash_computes_what_eager_computes(tmp_path, config, row, flash)
    assert len(flash.calls) == config.num_hidden_layers
    assert {call["window"] for call in flash.calls} == windows
    lengths = [bucket.shape[1] for bucket in row.layout.buckets for _ in bucket]
    assert all(call["lengths"] == lengths for call in flash.calls)


def test_one_sequence_takes_the_flash_kernel_in_layers_with_a_window_alone(
    tmp_path: Path, flash: FlashAttention
) -> None:
    config, _ = MODELS["olmo3"]
    row = sequence_row([np.arange(40, dtype=np.int32)])
    assert_flash_computes_what_eager_computes(tmp_path, config, row, flash)
    assert flash.calls == [{"lengths": [40], "window": (4, 0)}]


def assert_flash_computes_what_eager_computes(
    folder: Path, config: PreTrainedConfig, row: PackedRow, flash: FlashAttention
) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)

    def results(name: str) -> tuple[Tensor, Tensor]:
        policy = load_policy(folder, LearnerConfig(attention=name, compute_dtype="bfloat16"))
        logprobs = policy(row, 1.0)[0]
        logprobs.sum().backward()
        return logprobs.detach(), policy.lm.model.layers[0].self_attn.q_proj.weight.grad

    eager, eager_gradient = results("eager")
    assert not flash.calls
    fast, gradient = results("auto")
    assert (fast - eager).abs().max() < 0.05, f"log-probabilities differ by {(fast - eager).abs().max():.3f}"
    error = (gradient - eager_gradient).norm() / eager_gradient.norm()
    assert error < 0.1, f"the gradient of the queries differs by {error:.3f} of its norm"


def test_long_sequences_take_sdpa_for_each_bucket(tmp_path: Path, flash: FlashAttention) -> None:
    row = sequence_row([np.arange(length, dtype=np.int32) % 256 for length in (2100, 100)])
    config = LlamaConfig(**TINY | {"max_position_embeddings": 4096})
    assert_flash_computes_what_eager_computes(tmp_path, config, row, flash)
    assert flash.calls == []


def test_auto_is_eager_for_models_that_cap_scores_and_sdpa_for_others() -> None:
    capped = Gemma2Config(**TINY, query_pre_attn_scalar=16, attn_logit_softcapping=2.0)
    assert choose_attention(BFLOAT16, capped) == "eager"
    assert choose_attention(BFLOAT16, LlamaConfig(**TINY)) == "sdpa"
    assert choose_attention(LearnerConfig(attention="eager"), LlamaConfig(**TINY)) == "eager"
    mamba = MambaConfig(vocab_size=64, hidden_size=512, num_hidden_layers=1)
    assert choose_attention(BFLOAT16, mamba) == "sdpa", "a model without attention, which packing refuses"


@pytest.mark.parametrize(
    ("window", "autocast", "key_heads"),
    [(None, True, 2), (8, True, 2), (3, True, 4), (None, False, 4)],
    ids=["no window", "a window beyond the end", "a window", "float32"],
)
def test_on_a_gpu_sdpa_shares_key_heads_only_where_a_fused_kernel_can(
    monkeypatch: pytest.MonkeyPatch, window: int | None, autocast: bool, key_heads: int
) -> None:
    calls = []

    def record(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        calls.append((key.shape[1], value.shape[1], None if attn_mask is None else attn_mask.shape, is_causal))
        assert enable_gqa or key.shape[1] == query.shape[1]
        return query

    monkeypatch.setattr(attention, "scaled_dot_product_attention", record)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: autocast)
    # Tensors without data: they only have to be on another device than the CPU.
    q, k = (torch.empty(3, heads, 8, 32, device="meta") for heads in (4, 2))
    attention._sdpa(q, k, k, scaling=None, sliding_window=window, softcap=None)
    is_masked = window == 3
    assert calls == [(key_heads, key_heads, (8, 8) if is_masked else None, not is_masked)]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("chunk_tokens", [8, 4096])
def test_a_policy_on_a_gpu_makes_every_tensor_there(
    monkeypatch: pytest.MonkeyPatch, implementation: str, chunk_tokens: int
) -> None:
    """Tensors without data stand for those on a GPU: torch refuses to mix either with the CPU's."""
    gpu = torch.device("meta")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.float32)
    with gpu:
        lm = AutoModelForCausalLM.from_config(MistralConfig(**TINY, sliding_window=3))
    lm.set_attn_implementation(register_attention(implementation))
    policy = Policy(lm, compute_dtype=torch.float32, logits_chunk_tokens=chunk_tokens)
    policy.scorer.entropy_gradient = True
    rows, _ = pack_for_rank(make_groups(), max_tokens=4096, rank=0, num_ranks=1)
    row = next(iter(rows)).to(gpu)
    logprobs, entropies = policy(row, 0.8)
    (logprobs.sum() + entropies.sum()).backward()
    assert (logprobs.shape, logprobs.device) == (row.targets_C.shape, gpu)
    gradients = [parameter.grad for parameter in policy.parameters()]
    assert {None if gradient is None else gradient.device for gradient in gradients} == {gpu}
