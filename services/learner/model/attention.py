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
from torch.nn.functional import scaled_dot_product_attention

from services.learner.model.packing import Layout
from services.learner.model.sequence_parallel import SharedLayout, heads_for_tokens, tokens_for_heads
from shoal.config.tables.learner import LearnerConfig
from shoal.errors import InvalidArgument
from shoal.models.head_sizes import head_sizes

_SHORT_ON_CPU = 256
"""The length up to which matrix products beat torch's fused kernel on a CPU: by 15 times in bfloat16 at 56 tokens."""

_FLASH_VERSION = "2.6.0"
"""The first version of flash-attn that can cap attention scores."""
_FLASH_HEAD_SIZE = 256
"""The largest head size that flash-attn computes."""

SequenceAttention = Callable[..., Tensor]
"""A function (q [N, H, L, D], k [N, K, L, D], v, scaling, sliding_window, softcap) -> [N, H, L, D] that computes causal
attention."""


def choose_attention(config: LearnerConfig, model_config: Any) -> str:
    """Resolves "auto" for this machine and a model with this configuration of transformers.

    Raises `InvalidArgument` when the named attention cannot compute the model on this machine.
    """
    attention: str = config.attention
    if attention not in ("auto", "flash_attention_2"):
        return attention
    obstacle = _flash_obstacle(config.compute_dtype, model_config)
    if obstacle is None:
        return "flash_attention_2"
    if attention == "auto":
        return "sdpa"
    raise InvalidArgument(f"learner.attention: flash_attention_2 {obstacle}; choose auto or sdpa")


def _flash_obstacle(compute_dtype: str, model_config: Any) -> str | None:
    """Returns why flash-attn cannot compute a model on this machine; None if flash-attn can."""
    from transformers.utils import is_flash_attn_greater_or_equal

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        return "needs a GPU of compute capability 8.0 (Ampere) or newer"
    if not is_flash_attn_greater_or_equal(_FLASH_VERSION):
        return f"needs the package flash-attn, version {_FLASH_VERSION} or newer"
    if compute_dtype != "bfloat16":
        return f"computes in bfloat16 only, but learner.compute_dtype is {compute_dtype}"
    if (largest := head_sizes(model_config)[-1]) > _FLASH_HEAD_SIZE:
        return f"takes heads of size {_FLASH_HEAD_SIZE} at most, but this model has heads of size {largest}"
    return None


def register_attention(implementation: str) -> str:
    """Registers packed attention with transformers, and returns the name of the registration.

    `implementation` is "sdpa", "eager" or "flash_attention_2". The model's forward then takes a `layout`.
    """
    from transformers import AttentionInterface

    per_sequence = {"sdpa": _sdpa, "eager": _eager, "flash_attention_2": _flash}[implementation]

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
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Computes attention of query [1, H, R, D] with key and value [1, K, R, D], as [1, R, H, D], without
        dropout."""
        if torch.is_autocast_enabled(query.device.type):
            # float32 cosines rotated queries and keys. Round them before they are gathered and exchanged.
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = (x.to(dtype) for x in (query, key, value))
        group = layout.group if isinstance(layout, SharedLayout) else None
        if group is not None:
            query, key, value = (heads_for_tokens(x, group) for x in (query, key, value))
        attend = partial(per_sequence, scaling=scaling, sliding_window=sliding_window, softcap=softcap)
        if layout.output_R is None:
            out_1RHD = attend(query, key, value).transpose(1, 2)
        else:
            outputs = [
                attend(*(_sequences(x[0], bucket_NL) for x in (query, key, value))).transpose(1, 2).flatten(0, 1)
                for bucket_NL in layout.buckets
            ]
            out_1RHD = torch.cat(outputs).index_select(0, layout.output_R).unsqueeze(0)
        return (out_1RHD if group is None else tokens_for_heads(out_1RHD, group)), None

    # transformers would look for a kernel of its own behind a name that contains "flash".
    name = "shoal_packed_" + implementation.replace("flash_attention_2", "fa2")
    # No mask function is registered under this name, so the model builds no mask.
    AttentionInterface.register(name, packed_attention)
    return name


def _sequences(x_HRD: Tensor, bucket_NL: Tensor) -> Tensor:
    """Gathers the tokens of each sequence of a bucket, [N, H, L, D]."""
    num_heads, _, size = x_HRD.shape
    # Put all heads of a token side by side: then each token is one contiguous copy, forward and backward.
    x_RF = x_HRD.transpose(0, 1).flatten(1)
    picked = x_RF.index_select(0, bucket_NL.flatten())
    return picked.view(*bucket_NL.shape, num_heads, size).transpose(1, 2)


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, scaling: float | None, sliding_window: int | None, softcap: float | None
) -> Tensor:
    if softcap is not None:
        raise InvalidArgument(
            "learner.attention: sdpa cannot cap attention scores, as this model does; use eager or flash_attention_2"
        )
    length = q.shape[2]
    if q.device.type == "cpu" and length <= _SHORT_ON_CPU:
        return _eager(q, k, v, scaling=scaling, sliding_window=sliding_window, softcap=None)
    window = None if sliding_window is None or sliding_window >= length else _visible(length, sliding_window, q.device)
    if q.device.type != "cpu" and (window is not None or not torch.is_autocast_enabled(q.device.type)):
        # On a GPU only torch's flash kernel shares key heads, without mask or float32. Others compute all scores.
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return scaled_dot_product_attention(
        q, k, v, attn_mask=window, is_causal=window is None, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
    )


def _eager(
    q: Tensor, k: Tensor, v: Tensor, *, scaling: float | None, sliding_window: int | None, softcap: float | None
) -> Tensor:
    """Computes attention by the textbook formula, with scores and softmax in float32."""
    num_sequences, num_heads, length, size = q.shape
    num_keys = k.shape[1]
    scaling = size**-0.5 if scaling is None else scaling
    with torch.autocast(q.device.type, enabled=False):
        # Compute one matrix product for all query heads that share a key head.
        q = q.reshape(num_sequences * num_keys, -1, size).float() * scaling
        k, v = (x.reshape(num_sequences * num_keys, length, size) for x in (k, v))
        scores = torch.bmm(q, k.float().transpose(1, 2))
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        hidden = ~_visible(length, sliding_window, q.device).repeat(num_heads // num_keys, 1)
        probabilities = torch.softmax(scores.masked_fill_(hidden, -torch.inf), dim=-1)
        return torch.bmm(probabilities.to(v.dtype), v).view(num_sequences, num_heads, length, size)


def _visible(length: int, sliding_window: int | None, device: torch.device) -> Tensor:
    """Returns the causal mask, [L, L]: True where a query (first axis) sees a key."""
    positions = torch.arange(length, device=device)
    # Compare, do not subtract: differences would take 8 bytes for each pair.
    visible = positions[:, None] >= positions
    if sliding_window:
        visible &= positions[:, None] - sliding_window < positions
    return visible


def _flash(
    q: Tensor, k: Tensor, v: Tensor, *, scaling: float | None, sliding_window: int | None, softcap: float | None
) -> Tensor:
    from flash_attn import flash_attn_func

    # flash-attn takes 16-bit tensors of one type. Queries and keys are float32, since float32 cosines rotated them.
    q, k, v = (x.transpose(1, 2).to(torch.bfloat16) for x in (q, k, v))
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)
    out = flash_attn_func(q, k, v, causal=True, softmax_scale=scaling, window_size=window, softcap=softcap or 0.0)
    return out.transpose(1, 2)
