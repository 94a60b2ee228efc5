"""The model's whole tensors, and the whole tensors of its adapters, read from parameters that may be sharded."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from services.learner.engine.deepspeed_settings import deepspeed
from services.learner.model.weights import Adapter, Weight, merged, values_of, whole_shape
from shoal.weights.adapter import adapter_name

_GATHER_BYTES = 256 << 20
"""The number of float32 bytes of sharded parameters that are gathered and read at once."""


def whole_weights(weights: Sequence[Weight], dtype: torch.dtype, *, is_sharded: bool) -> Iterator[tuple[str, Tensor]]:
    """Yields each whole weight by name, with the weight's adapter merged in. Exhaust the iterator on all ranks.

    Trained and merged weights are float32, except that sharded weights may come in bfloat16 if `dtype` is bfloat16 and
    they need not stay float32. Such a weight is the float32 value rounded once, as the caller would round it. Do not
    write to a tensor: it may be the parameter.
    """
    if not is_sharded:
        yield from ((weight.name, _value(weight, _matrices(weight.adapter, is_sharded=False))) for weight in weights)
        return
    for bucket in _buckets(weights, dtype):
        if _needs_master(bucket[0], dtype):
            yield bucket[0].name, _master(bucket[0].parameter)
            continue
        adapters = [_matrices(weight.adapter, is_sharded=True) for weight in bucket]
        with deepspeed.zero.GatheredParameters([weight.parameter for weight in bucket]):
            whole = [
                _value(weight, matrices).to(weight.type_beside(dtype), copy=matrices is None)
                for weight, matrices in zip(bucket, adapters, strict=True)
            ]
        yield from zip([weight.name for weight in bucket], whole, strict=True)


def whole_adapters(weights: Sequence[Weight], *, is_sharded: bool) -> Iterator[tuple[str, Tensor]]:
    """Yields the matrices of each adapter in float32, by peft's names; exhaust the iterator on all ranks."""
    for weight in weights:
        matrices = _matrices(weight.adapter, is_sharded=is_sharded)
        if matrices is not None:
            yield from zip(_peft_names(weight), matrices, strict=True)


def adapter_shapes(weights: Sequence[Weight]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each matrix of an adapter, by peft's names."""
    shapes: dict[str, tuple[int, ...]] = {}
    for weight in weights:
        if weight.adapter is not None:
            matrices = (weight.adapter.a_RI, weight.adapter.b_OR)
            shapes |= zip(_peft_names(weight), map(whole_shape, matrices), strict=True)
    return shapes


def _peft_names(weight: Weight) -> tuple[str, str]:
    layer = weight.name.removesuffix(".weight")
    return adapter_name(layer, "A"), adapter_name(layer, "B")


def _matrices(adapter: Adapter | None, *, is_sharded: bool) -> tuple[Tensor, Tensor] | None:
    if adapter is None:
        return None
    if is_sharded:
        return _master(adapter.a_RI), _master(adapter.b_OR)
    return adapter.a_RI.data, adapter.b_OR.data


def _value(weight: Weight, matrices: tuple[Tensor, Tensor] | None) -> Tensor:
    tensor = values_of(weight.parameter)
    if weight.adapter is None or matrices is None:
        return tensor
    return merged(tensor, *matrices, weight.adapter.scaling)


def _needs_master(weight: Weight, dtype: torch.dtype) -> bool:
    """Returns whether a sharded parameter must be read from its float32 master.

    Parameters gathered for the forward pass may be rounded to bfloat16. A frozen parameter has no master.
    """
    return bool(weight.parameter.requires_grad) and weight.type_beside(dtype) != torch.bfloat16


def _master(parameter: nn.Parameter) -> Tensor:
    master: Tensor = deepspeed.utils.safe_get_full_fp32_param(parameter)
    return master


def _buckets(weights: Sequence[Weight], dtype: torch.dtype) -> Iterator[list[Weight]]:
    """Yields the weights in order: either several to gather together, or a single one to read from its master."""
    bucket: list[Weight] = []
    size = 0
    for weight in weights:
        num_bytes = 4 * math.prod(weight.shape)
        is_alone = _needs_master(weight, dtype)
        if bucket and (is_alone or _needs_master(bucket[0], dtype) or size + num_bytes > _GATHER_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(weight)
        size += num_bytes
    if bucket:
        yield bucket
