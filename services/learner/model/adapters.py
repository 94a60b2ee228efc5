"""Low-rank adapters (LoRA, arXiv:2106.09685) on the linear layers of a frozen language model.

peft wraps a linear layer, and so renames its weight; `list_weights` knows the original names of the tensors.

Letters: R rank, I inputs and O outputs of a linear layer.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from services.learner.model.weights import ADAPTER, adapted_layers
from shoal.config.tables.lora import LoraConfig
from shoal.errors import InvalidArgument
from shoal.models.linear_layers import find_targets


def add_adapters(lm: Any, config: LoraConfig, *, seed: int) -> None:
    """Freezes the model, and gives each target layer an adapter in float32 that changes nothing yet.

    Equal seeds give equal adapters on every rank and device. The model's weights may be sharded. Raises the errors of
    `inject_adapters`.
    """
    inject_adapters(lm, config)
    generator = torch.Generator().manual_seed(seed)
    for _, layer in adapted_layers(lm):
        # peft would cast inputs to float32, and autocast back to bfloat16.
        layer.cast_input_dtype_enabled = False
        for matrix in (layer.lora_A[ADAPTER], layer.lora_B[ADAPTER]):
            # peft gives them the type of the layer: an update is smaller than the resolution of a bfloat16 weight.
            matrix.weight.data = matrix.weight.data.float()
        a_RI, b_OR = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        initial_RI = torch.empty(a_RI.shape)
        # Uniform up to 1 / sqrt(I), as in peft.
        nn.init.kaiming_uniform_(initial_RI, a=math.sqrt(5), generator=generator)
        a_RI.data.copy_(initial_RI)
        b_OR.data.zero_()


def inject_adapters(lm: Any, config: LoraConfig) -> None:
    """Freezes the model, and gives each target layer peft's adapter. The model may have no memory for its weights.

    Raises the errors of `find_targets`, and `InvalidArgument` if peft would also adapt the experts of a mixture.
    """
    from peft import inject_adapter_in_model

    targets = find_targets(lm, config.target_modules)
    lm.requires_grad_(False)
    inject_adapter_in_model(peft_config(config, targets), lm, ADAPTER)
    _check_experts(lm, targets)


def _check_experts(lm: Any, targets: list[str]) -> None:
    """Refuses adapters of experts, which peft adds, unasked, if a target has the name of a fused expert's matrix.

    Such adapters could be neither merged nor published, because the experts are not linear layers.
    """
    wrapped = {name.removesuffix(".base_layer") for name, _ in adapted_layers(lm)} - set(targets)
    if wrapped:
        raise InvalidArgument(
            f"learner.lora.target_modules: peft would also adapt the experts {min(wrapped)}, because their matrices "
            'have names of target layers; name other layers, such as ["q_proj", "k_proj", "v_proj", "o_proj"]'
        )


def peft_config(config: LoraConfig, targets: list[str], *, base: str | None = None, revision: str | None = None) -> Any:
    """Returns peft's configuration of adapters on `targets` of the model `base`, at its `revision` on the hub."""
    from peft import LoraConfig as PeftConfig

    return PeftConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        use_rslora=config.rslora,
        target_modules=targets,
        base_model_name_or_path=base,
        revision=revision,
        task_type=None if base is None else "CAUSAL_LM",
    )


@contextmanager
def switched_off(layers: Iterable[Any]) -> Iterator[None]:
    """Switches the adapters of `layers` off within the context."""
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
