"""The choice of attention, and what the two kernels of a GPU are called with."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Olmo2Config,
    PreTrainedConfig,
    Qwen3Config,
)

from services.learner.model import attention
from services.learner.model.attention import choose_attention, register_attention
from services.learner.model.packing import pack_for_rank
from services.learner.model.policy import Policy, load_policy, load_reference
from shoal.config.tables.learner import LearnerConfig
from shoal.errors import InvalidArgument
from tests.support.packages import stand_in
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


class FlashAttention:
    """Stands for flash-attn 2.8: its signature, its checks, and its result in textbook arithmetic."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def flash_attn_func(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Tensor:
        """[N, L, H, D], [N, L, K, D] twice -> [N, L, H, D]. A query at i sees keys from i - left to i + right."""
        self.calls.append({"q": q.shape, "k": k.shape, "window": window_size, "softcap": softcap})
        assert {q.dtype, k.dtype, v.dtype} == {torch.bfloat16}, f"one 16-bit type, not {q.dtype}, {k.dtype}, {v.dtype}"
        assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1, "contiguous heads"
        num_sequences, length, num_heads, size = q.shape
        assert size <= 256 and k.shape == v.shape == (num_sequences, length, k.shape[2], size)
        assert num_heads % k.shape[2] == 0 and causal and not dropout_p and alibi_slopes is None
        q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
        k, v = (x.repeat_interleave(num_heads // x.shape[1], dim=1) for x in (k, v))
        scores = q @ k.transpose(2, 3) * (size**-0.5 if softmax_scale is None else softmax_scale)
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        distance = torch.arange(length)[:, None] - torch.arange(length)
        visible = (distance >= 0) & ((window_size[0] < 0) | (distance <= window_size[0]))
        return (torch.softmax(scores.masked_fill(~visible, -torch.inf), -1) @ v).transpose(1, 2).bfloat16()


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> FlashAttention:
    """A machine whose GPU and packages allow flash-attn, except that it is the CPU that computes."""
    recorder = FlashAttention()
    stand_in(monkeypatch, {"flash_attn": {"flash_attn_func": recorder.flash_attn_func}})
    monkeypatch.setattr(attention, "_flash_obstacle", lambda *_: None)
    return recorder


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**TINY),
        Qwen3Config(**TINY),
        Olmo2Config(**TINY),
        MistralConfig(**TINY, sliding_window=3),
        Gemma2Config(**TINY, query_pre_attn_scalar=16, sliding_window=5, attn_logit_softcapping=2.0),
    ],
    ids=lambda config: config.model_type,
)
def test_flash_attention_gets_bfloat16_alone_and_computes_what_eager_computes(
    config: PreTrainedConfig, tmp_path: Path, flash: FlashAttention
) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    rows, _ = pack_for_rank(make_groups(num_groups=2, group_size=3), max_tokens=4096, rank=0, num_ranks=1)

    def results(attention: str) -> tuple[Tensor, Tensor, Tensor]:
        settings = LearnerConfig(attention=attention, compute_dtype="bfloat16")
        policy = load_policy(tmp_path, settings)
        logprobs = policy(rows[0], 1.0)[0]
        logprobs.sum().backward()
        gradient = policy.lm.model.layers[0].self_attn.q_proj.weight.grad
        return logprobs.detach(), gradient, load_reference(tmp_path, settings)(rows[0], 1.0)[0]

    eager, eager_gradient, _ = results("eager")
    assert not flash.calls
    fast, gradient, reference = results("auto")
    assert len(flash.calls) == 2 * config.num_hidden_layers * len(rows[0].layout.buckets)
    # Rounding of queries and keys to bfloat16, which eager attention leaves in float32, moves both a little.
    assert (fast - eager).abs().max() < 0.05, f"log-probabilities differ by {(fast - eager).abs().max():.3f}"
    error = (gradient - eager_gradient).norm() / eager_gradient.norm()
    assert error < 0.1, f"the gradient of the queries differs by {error:.3f} of its norm"
    assert (reference - fast).abs().max() < 0.05, f"the reference differs by {(reference - fast).abs().max():.3f}"


def test_flash_attention_sees_a_window_and_a_cap_where_the_model_has_them(
    tmp_path: Path, flash: FlashAttention
) -> None:
    config = Gemma2Config(**TINY, query_pre_attn_scalar=16, sliding_window=5, attn_logit_softcapping=2.0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    rows, _ = pack_for_rank(make_groups(num_groups=2, group_size=3), max_tokens=4096, rank=0, num_ranks=1)
    load_policy(tmp_path, LearnerConfig(attention="flash_attention_2", compute_dtype="bfloat16"))(rows[0], 1.0)
    assert {call["softcap"] for call in flash.calls} == {2.0}
    # The query itself and the four before it: flash-attn counts those on its left.
    assert {call["window"] for call in flash.calls} == {(4, 0), (-1, -1)}


def _gpu(monkeypatch: pytest.MonkeyPatch, *, capability: tuple[int, int] = (9, 0), version: str = "2.8.3") -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    installed = tuple(map(int, version.split("."))) if version else ()
    monkeypatch.setattr(
        "transformers.utils.is_flash_attn_greater_or_equal",
        lambda wanted: installed >= tuple(map(int, wanted.split("."))),
    )


def test_auto_is_flash_attention_where_gpu_package_type_and_model_allow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LlamaConfig(**TINY)
    assert choose_attention(BFLOAT16, model) == "sdpa", "without a GPU"
    _gpu(monkeypatch)
    assert choose_attention(BFLOAT16, model) == "flash_attention_2"
    assert choose_attention(LearnerConfig(attention="eager"), model) == "eager"
    mamba = MambaConfig(vocab_size=64, hidden_size=512, num_hidden_layers=1)
    assert choose_attention(BFLOAT16, mamba) == "sdpa", "a model without attention, which packing refuses"


@pytest.mark.parametrize(
    ("machine", "settings", "model", "why"),
    [
        ({"capability": (7, 5)}, {}, {}, "needs a GPU of compute capability 8.0"),
        ({"version": ""}, {}, {}, "needs the package flash-attn, version 2.6.0 or newer"),
        ({"version": "2.5.9"}, {}, {}, "needs the package flash-attn, version 2.6.0 or newer"),
        ({}, {"compute_dtype": "float32"}, {}, "computes in bfloat16 only, but learner.compute_dtype is float32"),
        ({}, {}, {"head_dim": 512}, "takes heads of size 256 at most, but this model has heads of size 512"),
    ],
)
def test_what_keeps_flash_attention_from_computing_is_named_and_auto_avoids_it(
    monkeypatch: pytest.MonkeyPatch, machine: Any, settings: Any, model: Any, why: str
) -> None:
    _gpu(monkeypatch, **machine)
    config = LlamaConfig(**TINY | model)
    settings = {"compute_dtype": "bfloat16"} | settings
    assert choose_attention(LearnerConfig(**settings), config) == "sdpa"
    with pytest.raises(InvalidArgument, match=rf"learner\.attention: flash_attention_2 {why}.*choose auto or sdpa"):
        choose_attention(LearnerConfig(attention="flash_attention_2", **settings), config)


def test_layers_with_heads_of_their_own_size_are_counted_where_flash_attention_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _gpu(monkeypatch)
    kinds = ["sliding_attention", "full_attention"]
    model = Gemma4TextConfig(num_hidden_layers=2, layer_types=kinds, head_dim=64, global_head_dim=512)
    assert choose_attention(BFLOAT16, model) == "sdpa"
    with pytest.raises(InvalidArgument, match=r"flash_attention_2 .*256.* 512"):
        choose_attention(LearnerConfig(attention="flash_attention_2", compute_dtype="bfloat16"), model)


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
    row = rows[0].to(gpu)
    logprobs, entropies = policy(row, 0.8)
    (logprobs.sum() + entropies.sum()).backward()
    assert (logprobs.shape, logprobs.device) == (row.targets_C.shape, gpu)
    gradients = [parameter.grad for parameter in policy.parameters()]
    assert {None if gradient is None else gradient.device for gradient in gradients} == {gpu}
