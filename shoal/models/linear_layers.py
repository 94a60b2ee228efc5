"""The linear layers and the experts of a built model.

Run as a program, this module builds the model without memory for the weights.
`shoal.models.adapter_check`, which has no torch, calls `python -m shoal.models.linear_layers`.
"""

import json
import sys
from typing import Any

from shoal.config.tables.lora import ALL_LINEAR
from shoal.errors import InvalidArgument
from shoal.models.adapter_targets import choose_targets

_NAMES_IN_FILES = ("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
"""What the files of most mixtures call the matrices of an expert, which transformers joins."""


def find_targets(lm: Any, names: list[str]) -> list[str]:
    """Lists the linear layers that `learner.lora.target_modules` names, in the model's order.

    Raises `InvalidArgument` for unknown names, the output layer, output projections of Mamba layers, experts, other
    modules, and models without linear layers.
    """
    from torch import nn

    head = lm.get_output_embeddings()
    linear, others = [], {}
    for name, module in lm.named_modules():
        if module is head:
            others[name] = "is the output layer, and its weight directly gives the log-probabilities"
        elif name.endswith("out_proj") and _is_mamba(lm.get_submodule(name.rpartition(".")[0])):
            others[name] = "is the output projection of a Mamba layer, whose fused kernel would ignore an adapter"
        elif isinstance(module, nn.Linear):
            linear.append(name)
        else:
            others[name] = f"is a {type(module).__name__}, and only linear layers can have an adapter"
    for name, module in find_experts(lm).items():
        for matrix in (*module._parameters, *_NAMES_IN_FILES):
            others[f"{name}.{matrix}"] = (
                f"belongs to experts, {name}, which are one parameter in a layer, and only linear layers can have an "
                "adapter"
            )
    return choose_targets(names, linear, others, model=type(lm).__name__)


def left_out(lm: Any, names: list[str]) -> str:
    """Returns what every linear layer, if `names` means these, leaves out of a mixture: its experts; or an empty text.

    The model's parameters may not be sharded.
    """
    experts = find_experts(lm)
    if names != [ALL_LINEAR] or not experts:
        return ""
    left, whole = (
        sum(parameter.numel() for module in modules for parameter in module.parameters())
        for modules in (experts.values(), [lm])
    )
    return (
        f'learner.lora.target_modules: ["{ALL_LINEAR}"] leaves out the experts, {left:,} of the model\'s {whole:,} '
        f"parameters, because they are not linear layers (for example, {next(iter(experts))}): they stay frozen"
    )


def find_experts(lm: Any) -> dict[str, Any]:
    """Returns the modules whose parameters are all experts of a layer, which transformers computes with grouped
    products, by name."""
    # transformers' decorator for such modules gives them this method, if they have none of their own.
    return {name: module for name, module in lm.named_modules() if hasattr(type(module), "_apply_gate")}


def _is_mamba(module: Any) -> bool:
    """Whether a module is a Mamba layer. Its fused kernel reads the weight of `out_proj` without calling the module."""
    return all(hasattr(module, name) for name in ("A_log", "D", "conv1d", "out_proj"))


def main() -> None:
    """Reads a request, one line of JSON. Writes one line of JSON: why its names are refused, or an empty text, and what
    they leave out."""
    import torch
    from transformers import AutoConfig

    from shoal.models.text_part import auto_class, keep_text_part

    request = json.loads(sys.stdin.read())
    trusted = request["trust_remote_code"]
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(request["folder"], trust_remote_code=trusted)
        lm = keep_text_part(auto_class(config).from_config(config, trust_remote_code=trusted))
    try:
        find_targets(lm, request["names"])
        print(json.dumps({"refusal": "", "left_out": left_out(lm, request["names"])}))
    except InvalidArgument as error:
        print(json.dumps({"refusal": error.message, "left_out": ""}))


if __name__ == "__main__":
    main()
