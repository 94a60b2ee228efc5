"""The layers of a model that get an adapter, for the learner that trains them and the engine that serves them."""

from typing import Any

from shoal.config.lora import ALL_LINEAR
from shoal.errors import InvalidArgument

_MAX_NAMES = 12


def find_targets(lm: Any, names: list[str]) -> list[str]:
    """Lists the linear layers that `learner.lora.target_modules` names, in the model's order.

    Raises `InvalidArgument` for a name of none, of the output layer, or of a module that is not linear, and for a model
    without linear layers.
    """
    from torch import nn

    head = lm.get_output_embeddings()
    linear = {
        name: module for name, module in lm.named_modules() if isinstance(module, nn.Linear) and module is not head
    }
    if not linear:
        raise InvalidArgument(
            f"learner.lora: a {type(lm).__name__} has no linear layers, and only these can have an adapter: train the "
            "model itself (rank 0), or choose another model"
        )
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
