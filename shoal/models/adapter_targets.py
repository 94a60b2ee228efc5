"""The layers of a model that get an adapter, by the names in `learner.lora.target_modules`."""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches

from shoal.config.tables.lora import ALL_LINEAR, LoraConfig
from shoal.errors import InvalidArgument

_MAX_NAMES = 12
_MAX_SIMILAR = 3


def _is_named(layer: str, wanted: str) -> bool:
    """Whether `wanted` is the name of a layer, or the end of its name."""
    return layer == wanted or layer.endswith(f".{wanted}")


def choose_targets(names: list[str], linear: Collection[str], others: Mapping[str, str], *, model: str) -> list[str]:
    """Lists the layers among `linear` that the names mean, in the order of `linear`.

    `others` has the reason why each other module of the model can have no adapter.

    Raises `InvalidArgument` with every unsuitable name, similar names, and the known names.
    """
    if not linear:
        raise InvalidArgument(
            f"learner.lora: a {model} has no linear layers, and only linear layers can have an adapter: train the "
            "model itself (rank 0), or choose another model"
        )
    if names == [ALL_LINEAR]:
        return list(linear)
    wrong = [wanted for wanted in names if not any(_is_named(layer, wanted) for layer in linear)]
    if wrong:
        known = sorted({layer.rpartition(".")[2] for layer in linear})
        reasons = ", and ".join(_reason(wanted, linear, others, model) for wanted in wrong)
        raise InvalidArgument(
            f"learner.lora.target_modules: {reasons}; use {', '.join(known[:_MAX_NAMES])}, or "
            f'["{ALL_LINEAR}"] for all of them'
        )
    return [layer for layer in linear if any(_is_named(layer, wanted) for wanted in names)]


def num_adapter_weights(lora: LoraConfig, layers: Mapping[str, tuple[int, int]]) -> int:
    """Counts the weights of the adapters on a model's layers; `layers` has the outputs and inputs of each.

    Raises `InvalidArgument` for a name that no layer has.
    """
    targets = choose_targets(lora.target_modules, layers, {}, model="model of these layers")
    return lora.rank * sum(sum(layers[name]) for name in targets)


def _reason(wanted: str, linear: Collection[str], others: Mapping[str, str], model: str) -> str:
    of_all = re.sub(r"\bexperts\.\d+\.", "experts.", wanted)
    if why := next((why for name, why in others.items() if _is_named(name, of_all)), None):
        return f'"{wanted}" {why}'
    # Compare as many parts of the layers' names as the given name has.
    num_parts = wanted.count(".") + 1
    endings = {ending.lower(): ending for ending in (".".join(layer.split(".")[-num_parts:]) for layer in linear)}
    similar = [endings[name] for name in get_close_matches(wanted.lower(), endings, n=_MAX_SIMILAR)]
    meant = f" (did you mean {' or '.join(similar)}?)" if similar else ""
    return f'"{wanted}" names no linear layer of a {model}{meant}'
