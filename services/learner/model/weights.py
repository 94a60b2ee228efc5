"""A language model's tensors with their original names, shapes and values, in spite of DeepSpeed, peft and
bitsandbytes.

DeepSpeed shards a parameter and keeps its shape elsewhere. peft wraps a linear layer: `q_proj.weight` becomes
`q_proj.base_layer.weight`, beside `q_proj.lora_A.default.weight` and `lora_B`. bitsandbytes stores 4-bit codes.

Letters: R rank of an adapter, I inputs and O outputs of a linear layer.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from services.learner.model.mixers import find_mixers

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
    is_float32: bool
    """Whether the weight stays float32 in a model, a publish or an export of lower precision."""

    def type_beside(self, dtype: torch.dtype) -> torch.dtype:
        """Returns the type of this weight in a model, a publish or an export in the type `dtype`."""
        return torch.float32 if self.is_float32 else dtype


def list_weights(lm: Any) -> list[Weight]:
    """Lists a model's parameters, without adapters. Tied parameters appear once.

    Weights that stay float32 come first, so that in a file each tensor begins at a multiple of its type's size. The
    others follow in the model's order.
    """
    adapters = {
        name: Adapter(layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight, float(layer.scaling[ADAPTER]))
        for name, layer in adapted_layers(lm)
    }
    decays = _recurrent_parameters(lm)
    weights = []
    for wrapped, parameter in lm.named_parameters():
        name = wrapped.replace(".base_layer.", ".")
        if not name.endswith((f".lora_A.{ADAPTER}.weight", f".lora_B.{ADAPTER}.weight")):
            adapter = adapters.get(name.removesuffix(".weight"))
            is_float32 = parameter in decays or is_kept_in_float32(lm, name)
            weights.append(Weight(name, parameter, whole_shape(parameter), adapter, is_float32))
    return sorted(weights, key=lambda weight: not weight.is_float32)


def _recurrent_parameters(lm: Any) -> set[nn.Parameter]:
    """Returns the parameters of recurrent layers outside their linear layers and convolutions: decays and norms.

    The files of Qwen3.5 have decays (`A_log`) and these norms in float32 beside bfloat16, and vLLM keeps decays in
    float32. Rounded to bfloat16 a decay, which is the exponential of `A_log`, would err by up to 0.4 %.
    """
    modules = (module for mixer in find_mixers(lm) for module in mixer.modules())
    others = (module for module in modules if not isinstance(module, (nn.Linear, nn.Conv1d)))
    return {parameter for module in others for parameter in module.parameters(recurse=False)}


def is_kept_in_float32(lm: Any, name: str) -> bool:
    """Returns whether transformers keeps a parameter or a buffer in float32 when it loads a model in bfloat16."""
    patterns = lm._keep_in_fp32_modules_strict or ()
    return any(re.search(pattern.replace("*", ".*"), name) for pattern in patterns)


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
