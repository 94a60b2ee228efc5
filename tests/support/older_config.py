"""Configurations in the form of transformers 4, in which most models on the hub are."""

import json
from pathlib import Path
from typing import Any

_LAYERS = {"linear_attention": "mamba", "full_attention": "attention"}


def write_older_config(folder: Path) -> None:
    """Rewrites the config.json of a model that transformers 5 saved."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for part in (config, config.get("text_config", {})):
        part.update(_older(part))
    path.write_text(json.dumps(config, indent=2))


def _older(config: dict[str, Any]) -> dict[str, Any]:
    changes = _rotation(config.pop("rope_parameters", None) or {})
    if "dtype" in config:
        changes["torch_dtype"] = config.pop("dtype")
    kind = config.get("model_type", "")
    if kind.startswith("qwen3") and "num_local_experts" in config:
        changes["num_experts"] = config.pop("num_local_experts")
    if kind == "granitemoehybrid":
        changes["layer_types"] = [_LAYERS.get(layer, layer) for layer in config["layer_types"]]
    return changes


def _rotation(parameters: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that transformers 4 has in place of `rope_parameters`."""
    if "full_attention" in parameters:
        if any(kind["rope_type"] != "default" for kind in parameters.values()):
            return {"rope_parameters": parameters}  # Of models that transformers 4 does not know.
        local = {"rope_local_base_freq": parameters["sliding_attention"]["rope_theta"]}
        return local | _rotation(parameters["full_attention"])
    changes = {name: parameters[name] for name in ("rope_theta", "partial_rotary_factor") if name in parameters}
    scaling = {name: value for name, value in parameters.items() if name not in changes}
    if scaling and scaling != {"rope_type": "default"}:
        changes["rope_scaling"] = scaling
    return changes
