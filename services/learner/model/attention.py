"""Attention over packed rows, as an attention implementation of transformers.

A row contains many sequences, but each prompt only once for all its completions. Masking the full [R, R] matrix would
cost R^2 in time and memory for a result that is nearly all zeros: with many short sequences it would take most of a
step. Instead, attention gathers the sequences into a few batches of similar length, computes plain causal attention on
each, and puts every token's output back in the token's position. All layers outside attention see each prompt token
once.

Letters: R tokens of a row, N sequences of length L, H query heads, K key heads, D size of a head.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

from services.learner.model.packing import Layout
from services.learner.model.sequence_parallel import SharedLayout, heads_for_tokens, tokens_for_heads
from shoal.config.tables.learner import LearnerConfig
from shoal.errors import InvalidArgument

_SHORT_ON_CPU = 256
"""The length up to which matrix products beat torch's fused kernel on a CPU: by 15 times in bfloat16 at 56 tokens."""

_SHORT_ON_GPU = 2048
"""The length up to which one kernel for all sequences of a row beats a faster kernel for each bucket, on an H200."""
_FLASH_HEAD_SIZE = 256
"""The largest head size of torch's flash kernels."""

_WITH_SINKS = ("gpt_oss",)
"""Models whose softmax over keys has one more value for each head, a sink that no value belongs to."""
_IGNORED = ("position_ids", "cache_position", "position_embeddings")
"""Tensors that models pass on to attention, and that do not change what attention computes."""

SequenceAttention = Callable[..., Tensor]
"""A function (q [N, H, L, D], k [N, K, L, D], v, scaling, sliding_window, softcap) -> [N, H, L, D] that computes causal
attention."""


def choose_attention(config: LearnerConfig, model_config: Any) -> str:
    """Returns the attention to use. "auto" means eager for a model that caps attention scores, otherwise sdpa."""
    if config.attention != "auto":
        return config.attention
    text = model_config.get_text_config()
    caps_scores = getattr(text, "attn_logit_softcapping", None) is not None
    return "eager" if caps_scores or text.model_type in _WITH_SINKS else "sdpa"


def register_attention(implementation: str) -> str:
    """Registers packed attention with transformers, and returns the name of the registration.

    `implementation` is "sdpa" or "eager". The model's forward then takes a `layout`.
    """
    from transformers import AttentionInterface

    per_sequence = {"sdpa": _sdpa, "eager": _eager}[implementation]

    def packed_attention(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        *,
        layout: Layout,
        s_aux: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """Computes attention of query [1, H, R, D] with key [1, K, R, D] and value [1, K, R, V], as [1, R, H, V],
        without dropout. `s_aux` are the sinks of the heads, [H]."""
        _refuse_unknown(others)
        if torch.is_autocast_enabled(query.device.type):
            # float32 cosines rotated queries and keys. Round them before they are gathered and exchanged.
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = (x.to(dtype) for x in (query, key, value))
        width = value.shape[-1]
        if implementation == "sdpa" and width < query.shape[-1]:
            # Torch's fused kernels take values as wide as keys alone.
            value = functional.pad(value, (0, query.shape[-1] - width))
        group = layout.group if isinstance(layout, SharedLayout) else None
        if group is not None:
            query, key, value = (heads_for_tokens(x, group) for x in (query, key, value))
            s_aux = None if s_aux is None else s_aux.chunk(group.size)[group.index]
        if implementation == "sdpa" and softcap is None and _takes_all_at_once(query, layout):
            out_1RHD = _all_at_once(query, key, value, layout, scaling=scaling, sliding_window=sliding_window)
        else:
            attend = partial(per_sequence, scaling=scaling, sliding_window=sliding_window, softcap=softcap)
            out_1RHD = _by_bucket(
                attend if s_aux is None else partial(attend, sinks_H=s_aux), query, key, value, layout
            )
        return (out_1RHD if group is None else tokens_for_heads(out_1RHD, group))[..., :width], None

    # transformers refuses some models with names that end in "sdpa".
    name = f"shoal_{implementation}_packed"
    # No mask function is registered under this name, so the model builds no mask.
    AttentionInterface.register(name, packed_attention)
    return name


def _refuse_unknown(others: dict[str, Any]) -> None:
    """Raises `TypeError` for a tensor that would change attention in a way that is not implemented here."""
    unknown = sorted(name for name, value in others.items() if isinstance(value, Tensor) and name not in _IGNORED)
    if unknown:
        raise TypeError(f"its attention takes {', '.join(unknown)}, which attention over packed rows does not know")


def _all_at_once(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, *, scaling: float | None, sliding_window: int | None
) -> Tensor:
    """Computes attention of all sequences of a row in one kernel, [1, R, H, V]."""
    q_THD, k_TKD, v_TKD = (_gather(x[0], layout.gathered_T) for x in (query, key, value))
    out_THD = _flash(
        q_THD, k_TKD, v_TKD, layout.starts_S, layout.longest, scaling=scaling, sliding_window=sliding_window
    )
    return out_THD.index_select(0, layout.output_R).unsqueeze(0)


def _by_bucket(attend: SequenceAttention, query: Tensor, key: Tensor, value: Tensor, layout: Layout) -> Tensor:
    """Computes attention of the sequences of each bucket of a row, [1, R, H, V]."""
    if layout.output_R is None:
        return attend(query, key, value).transpose(1, 2)
    outputs = [
        attend(*(_sequences(x[0], bucket_NL) for x in (query, key, value))).transpose(1, 2).flatten(0, 1)
        for bucket_NL in layout.buckets
    ]
    return torch.cat(outputs).index_select(0, layout.output_R).unsqueeze(0)


def _sequences(x_HRD: Tensor, bucket_NL: Tensor) -> Tensor:
    """Gathers the tokens of each sequence of a bucket, [N, H, L, D]."""
    return _gather(x_HRD, bucket_NL.flatten()).unflatten(0, bucket_NL.shape).transpose(1, 2)


def _gather(x_HRD: Tensor, indices_T: Tensor) -> Tensor:
    """Gathers tokens of a row, [T, H, D]."""
    num_heads, _, size = x_HRD.shape
    # Put all heads of a token side by side: then each token is one contiguous copy, forward and backward.
    return x_HRD.transpose(0, 1).flatten(1).index_select(0, indices_T).view(-1, num_heads, size)


def _sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scaling: float | None,
    sliding_window: int | None,
    softcap: float | None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    if sinks_H is not None:
        raise InvalidArgument(
            "learner.attention: sdpa cannot add the sinks of this model to its softmax; use auto or eager"
        )
    if softcap is not None:
        raise InvalidArgument(
            "learner.attention: sdpa cannot cap attention scores, but this model does; use auto or eager"
        )
    length = q.shape[2]
    if q.device.type == "cpu" and length <= _SHORT_ON_CPU:
        return _eager(q, k, v, scaling=scaling, sliding_window=sliding_window, softcap=None)
    has_window = sliding_window is not None and sliding_window < length
    if has_window and _has_flash(q):
        # Torch's flash kernel skips what no query sees. With a mask, another kernel computes all scores.
        starts = torch.arange(0, q.shape[0] * length + 1, length, dtype=torch.int32, device=q.device)
        q_THD, k_TKD, v_TKD = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
        out_THD = _flash(q_THD, k_TKD, v_TKD, starts, length, scaling=scaling, sliding_window=sliding_window)
        return out_THD.view(q.shape[0], length, *q.shape[1::2]).transpose(1, 2)
    window = _visible(length, sliding_window, q.device) if has_window else None
    if q.device.type != "cpu" and (window is not None or not torch.is_autocast_enabled(q.device.type)):
        # On a GPU only torch's flash kernel shares key heads, without mask or float32. Others compute all scores.
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return scaled_dot_product_attention(
        q, k, v, attn_mask=window, is_causal=window is None, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
    )


def _eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scaling: float | None,
    sliding_window: int | None,
    softcap: float | None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Computes attention by the textbook formula, with scores and softmax in float32."""
    num_sequences, num_heads, length, size = q.shape
    num_keys = k.shape[1]
    scaling = size**-0.5 if scaling is None else scaling
    with torch.autocast(q.device.type, enabled=False):
        # Compute one matrix product for all query heads that share a key head.
        q = q.reshape(num_sequences * num_keys, -1, size).float() * scaling
        k, v = (x.reshape(num_sequences * num_keys, length, x.shape[-1]) for x in (k, v))
        scores = torch.bmm(q, k.float().transpose(1, 2))
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        hidden = ~_visible(length, sliding_window, q.device).repeat(num_heads // num_keys, 1)
        scores = scores.masked_fill_(hidden, -torch.inf)
        if sinks_H is not None:
            sinks = sinks_H.float().repeat_interleave(length).view(num_keys, -1, 1).repeat(num_sequences, 1, 1)
            scores = torch.cat([scores, sinks], dim=-1)
        probabilities = torch.softmax(scores, dim=-1)[..., :length]
        return torch.bmm(probabilities.to(v.dtype), v).view(num_sequences, num_heads, length, v.shape[-1])


def _visible(length: int, sliding_window: int | None, device: torch.device) -> Tensor:
    """Returns the causal mask, [L, L]: True where a query (first axis) sees a key."""
    positions = torch.arange(length, device=device)
    # Compare, do not subtract: differences would take 8 bytes for each pair.
    visible = positions[:, None] >= positions
    if sliding_window:
        visible &= positions[:, None] - sliding_window < positions
    return visible


def _takes_all_at_once(q: Tensor, layout: Layout) -> bool:
    return len(layout.buckets) > 1 and layout.longest <= _SHORT_ON_GPU and _has_flash(q)


def _has_flash(q: Tensor) -> bool:
    """Returns whether torch's flash kernel for sequences of any lengths computes attention of these queries."""
    is_fitting = q.shape[-1] <= _FLASH_HEAD_SIZE and q.shape[-1] % 8 == 0
    return (
        is_fitting
        and q.dtype in (torch.bfloat16, torch.float16)
        and q.device.type == "cuda"
        and torch.cuda.get_device_capability(q.device) >= (8, 0)
    )


def _flash(
    q_THD: Tensor,
    k_TKD: Tensor,
    v_TKD: Tensor,
    starts_S: Tensor,
    longest: int,
    *,
    scaling: float | None,
    sliding_window: int | None,
) -> Tensor:
    """Computes causal attention within concatenated sequences, [T, H, D].

    `starts_S` has the index at which each sequence starts, and the number of tokens, int32.
    """
    window = (-1 if sliding_window is None else sliding_window - 1, 0)
    out: Tensor = varlen_attn(
        q_THD, k_TKD, v_TKD, starts_S, starts_S, longest, longest, scale=scaling, window_size=window,
        enable_gqa=q_THD.shape[1] != k_TKD.shape[1],
    )  # fmt: skip
    return out
