"""A language model's tensors with their original names, shapes and values, in spite of DeepSpeed, peft and
bitsandbytes.

DeepSpeed shards a parameter and keeps its shape elsewhere. peft wraps a linear layer: `q_proj.weight` becomes
`q_proj.base_layer.weight`, beside `q_proj.lora_A.default.weight` and `lora_B`. bitsandbytes stores 4-bit codes.

Letters: R rank of an adapter, I inputs and O outputs of a linear layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

ADAPTER = "default"
"""peft's name of the only adapter."""


@dataclass(frozen=True)
class Adapter:
    """The two matrices that are trained in place of one weight."""

    a_RI: nn.Parameter
    b_OR: nn.Parameter
    scaling: float


@dataclass(frozen=True)
class Weight:
    """A parameter of the model."""

    name: str
    """The name in transformers and in the model's files."""
    parameter: nn.Parameter
    shape: tuple[int, ...]
    """The shape of the whole tensor, even if the parameter is sharded or quantized."""
    adapter: Adapter | None


def list_weights(lm: Any) -> list[Weight]:
    """Lists a model's parameters in the model's order, without adapters. Tied parameters appear once."""
    adapters = {
        name: Adapter(layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight, float(layer.scaling[ADAPTER]))
        for name, layer in adapted_layers(lm)
    }
    weights = []
    for wrapped, parameter in lm.named_parameters():
        name = wrapped.replace(".base_layer.", ".")
        if not name.endswith((f".lora_A.{ADAPTER}.weight", f".lora_B.{ADAPTER}.weight")):
            adapter = adapters.get(name.removesuffix(".weight"))
            weights.append(Weight(name, parameter, whole_shape(parameter), adapter))
    return weights


def adapted_layers(lm: Any) -> Iterator[tuple[str, Any]]:
    """Yields the layers that have an adapter, with their names."""
    return ((name, module) for name, module in lm.named_modules() if hasattr(module, "lora_A"))


def whole_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """Returns the shape of a parameter's values.

    A sharded parameter is empty, and DeepSpeed keeps its shape. bitsandbytes keeps the shape of a quantized parameter.
    """
    if (codes := getattr(parameter, "quant_state", None)) is not None:
        return tuple(codes.shape)
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def values_of(parameter: nn.Parameter) -> Tensor:
    """Returns the values of a whole parameter; 4-bit codes are dequantized."""
    if (codes := getattr(parameter, "quant_state", None)) is None:
        return parameter.data
    from bitsandbytes.functional import dequantize_4bit

    values: Tensor = dequantize_4bit(parameter.data, codes)
    return values


def merged(values_OI: Tensor, a_RI: Tensor, b_OR: Tensor, scaling: float) -> Tensor:
    """Computes the weight that replaces layer and adapter together, [O, I] float32."""
    return torch.addmm(values_OI.float(), b_OR, a_RI, alpha=scaling)
