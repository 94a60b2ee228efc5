"""The decoder layer as the unit in which ZeRO stage 3 gathers and prefetches parameters, and reduces gradients.

By default DeepSpeed gathers each linear layer by itself: about seven collectives a decoder layer, each too small for a
fast network, and a prefetch that is shorter than one matrix of a model of 7 billion parameters.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

PERSISTENT_ELEMENTS = 100_000
"""Number of elements up to which a parameter stays whole on every rank (DeepSpeed's default)."""


def gather_by_layer(lm: Any) -> dict[str, int]:
    """Marks the layers whose parameters are gathered together, and returns DeepSpeed's settings for them.

    While a layer computes, the parameters of the next layer are gathered.
    """
    from deepspeed.utils import set_z3_leaf_module

    sizes = [0]
    for layer in _decoder_layers(lm):
        set_z3_leaf_module(layer, True)
        elements = [getattr(parameter, "ds_numel", parameter.numel()) for parameter in layer.parameters()]
        sizes.append(sum(number for number in elements if number > PERSISTENT_ELEMENTS))
    settings = {"stage3_param_persistence_threshold": PERSISTENT_ELEMENTS}
    return settings | ({"stage3_prefetch_bucket_size": max(sizes)} if max(sizes) else {})


def _decoder_layers(lm: Any) -> Iterator[nn.Module]:
    """Yields transformers' decoder layers. The input of the first trained layer gets a gradient, if it has none.

    DeepSpeed reduces the gradients of a marked layer when the gradient of the layer's input is known. Without such a
    gradient it would do so before the layer's backward pass, and take all gradients for 0. A layer that is not marked
    would be gathered matrix by matrix. Recurrent layers call their matrices once for each bucket of a row, which are
    more on some ranks than on others, so the ranks would gather different matrices at the same time.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    has_gradient = _is_trained(lm.get_input_embeddings())
    for layer in lm.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            if not has_gradient and _is_trained(layer):
                layer.register_forward_pre_hook(_require_gradient, with_kwargs=True)
                has_gradient = True
            yield layer


def _require_gradient(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if torch.is_grad_enabled():
        hidden = args[0] if args else kwargs["hidden_states"]
        hidden.requires_grad_()


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
