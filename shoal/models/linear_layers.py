"""The linear layers of a built model. Run as a program, this module builds the model without memory for the weights.

`shoal.models.adapter_check`, which has no torch, calls `python -m shoal.models.linear_layers`.
"""

import json
import sys
from typing import Any

from shoal.errors import InvalidArgument
from shoal.models.adapter_targets import choose_targets


def find_targets(lm: Any, names: list[str]) -> list[str]:
    """Lists the linear layers that `learner.lora.target_modules` names, in the model's order.

    Raises `InvalidArgument` for unknown names, the output layer, output projections of Mamba layers, other modules, and
    models without linear layers.
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
    return choose_targets(names, linear, others, model=type(lm).__name__)


def _is_mamba(module: Any) -> bool:
    """Whether a module is a Mamba layer. Its fused kernel reads the weight of `out_proj` without calling the module."""
    return all(hasattr(module, name) for name in ("A_log", "D", "conv1d", "out_proj"))


def main() -> None:
    """Reads a request, one line of JSON. Writes one line of JSON: why its names are refused, or an empty text."""
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
        print(json.dumps({"refusal": ""}))
    except InvalidArgument as error:
        print(json.dumps({"refusal": error.message}))


if __name__ == "__main__":
    main()
