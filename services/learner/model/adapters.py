"""Low-rank adapters (LoRA, arXiv:2106.09685) on the linear layers of a frozen language model.

peft wraps a linear layer, and so renames its weight; `list_weights` knows the names that the tensors had.

Letters: R rank, I inputs and O outputs of a linear layer.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from services.learner.model.weights import ADAPTER, adapted_layers
from shoal.config.lora import ALL_LINEAR, LoraConfig
from shoal.errors import InvalidArgument

_MAX_NAMES = 12


def find_targets(lm: Any, names: list[str]) -> list[str]:
    """Lists the linear layers that `learner.lora.target_modules` names, in the model's order.

    Raises `InvalidArgument` for a name of none, of the output layer, or of a module that is not linear.
    """
    head = lm.get_output_embeddings()
    linear = {
        name: module for name, module in lm.named_modules() if isinstance(module, nn.Linear) and module is not head
    }
    if names == [ALL_LINEAR]:
        return list(linear)
    for wanted in names:
        if any(_is_named(name, wanted) for name in linear):
            continue
        named = [module for name, module in lm.named_modules() if _is_named(name, wanted)]
        if head in named:
            why = "is the output layer, whose own weight the log-probabilities are computed from"
        elif named:
            why = f"is a {type(named[0]).__name__}, and only linear layers can have an adapter"
        else:
            why = f"names no layer of a {type(lm).__name__}"
        known = sorted({name.rpartition(".")[2] for name in linear})
        raise InvalidArgument(
            f'learner.lora.target_modules: "{wanted}" {why}; there are {", ".join(known[:_MAX_NAMES])}, '
            f'and ["{ALL_LINEAR}"] for every one'
        )
    return [name for name in linear if any(_is_named(name, wanted) for wanted in names)]


def _is_named(name: str, wanted: str) -> bool:
    return name == wanted or name.endswith(f".{wanted}")


def add_adapters(lm: Any, config: LoraConfig, *, seed: int) -> None:
    """Freezes the model, and gives each target layer an adapter in float32 that changes nothing yet.

    The adapters of equal seeds are equal, on every rank and device. The model's weights may be sharded. Raises
    `InvalidArgument` as `find_targets`.
    """
    from peft import inject_adapter_in_model

    targets = find_targets(lm, config.target_modules)
    lm.requires_grad_(False)
    inject_adapter_in_model(peft_config(config, targets), lm, ADAPTER)
    generator = torch.Generator().manual_seed(seed)
    for _, layer in adapted_layers(lm):
        for matrix in (layer.lora_A[ADAPTER], layer.lora_B[ADAPTER]):
            # peft gives them the type of the layer: an update is smaller than the resolution of a bfloat16 weight.
            matrix.weight.data = matrix.weight.data.float()
        a_RI, b_OR = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        initial_RI = torch.empty(a_RI.shape)
        # Uniform up to 1 / sqrt(I), as in peft.
        nn.init.kaiming_uniform_(initial_RI, a=math.sqrt(5), generator=generator)
        a_RI.data.copy_(initial_RI)
        b_OR.data.zero_()


def peft_config(config: LoraConfig, targets: list[str], *, base: str | None = None) -> Any:
    """Returns peft's configuration of the adapters on some layers of the model `base`."""
    from peft import LoraConfig as PeftConfig

    return PeftConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        use_rslora=config.rslora,
        target_modules=targets,
        base_model_name_or_path=base,
        task_type=None if base is None else "CAUSAL_LM",
    )


@contextmanager
def switched_off(layers: Iterable[Any]) -> Iterator[None]:
    """Makes layers with an adapter compute what they computed without it."""
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
