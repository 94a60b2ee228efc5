"""Checks of a model before the engine loads it, and of a manifest before the engine joins a group."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from shoal.config.run import RunConfig
from shoal.config.tables.lora import LoraConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import InvalidArgument
from shoal.models.file_names import FileNames
from shoal.models.linear_layers import find_targets
from shoal.models.model_folder import model_config, read_json, resolve_model
from shoal.models.weight_files import WeightFiles, find_weight_files
from shoal.weights.adapter import adapter_shapes
from shoal.weights.manifest import Manifest
from shoal.wire import invalid

_TOWERS = {"vision_config", "audio_config"}
"""Parts of a config.json that describe what reads images or sound."""


@dataclass(frozen=True)
class CheckedModel:
    """A model that exists and has a context of sufficient length."""

    folder: Path
    dtype: str
    """Type of the weights in the engine."""
    max_context_tokens: int | None
    """The maximum context of the model; None if the model's files do not state the maximum."""
    has_state: bool = False
    """Whether the model has recurrent layers."""
    has_other_parts: bool = False
    """Whether the model can also read images or sound. The engine loads only the text part."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings of config.json with the values that vLLM needs to compute what transformers computes."""


def checked_model(config: RunConfig) -> CheckedModel:
    """Finds the model. Raises `InvalidArgument` if the model is missing or the model's context is too short."""
    folder = resolve_model(config.model.path, config.model.revision)
    description = model_config(folder)
    longest = description.max_context_tokens
    if longest is not None and config.max_model_len > longest:
        raise InvalidArgument(
            f"model.path: {config.model.path} has a context of {longest} tokens; the run needs {config.max_model_len}: "
            "lower generator.max_model_len or, if unset, data.max_prompt_tokens and sampling.max_completion_tokens",
            reason=ErrorReason.ENGINE_REFUSED,
        )
    dtype = config.generator.dtype
    # vLLM's "auto" would load a float32 model as bfloat16.
    settled = description.dtype if dtype == "auto" else dtype
    settings = read_json(folder / "config.json")
    overrides = {}
    if settings.get("model_type") == "cohere2" and settings.get("sliding_window") is not None:
        # vLLM adds 1 to this window: a token then sees one token more than in transformers.
        overrides["sliding_window"] = settings["sliding_window"] - 1
    return CheckedModel(folder, settled, longest, has_other_parts=not _TOWERS.isdisjoint(settings), overrides=overrides)


def expected_tensors(folder: Path, *, trust_remote_code: bool = False) -> dict[str, tuple[int, ...]]:
    """Returns name and shape of each tensor of a publish. Tied tensors occur once. No tensor is loaded.

    Raises `InvalidArgument` for a model that transformers cannot build, and the errors of `FileNames.shapes`.
    """
    model = _empty_model(folder, trust_remote_code=trust_remote_code)
    return FileNames(model).shapes({name: tuple(parameter.shape) for name, parameter in model.named_parameters()})


def tensors_to_keep(folder: Path, *, trust_remote_code: bool = False) -> list[str] | None:
    """Lists the tensors of the model's files that no publish replaces, such as the balance of a router's experts.

    Returns None if the files are not in safetensors. Raises the errors of `expected_tensors`, and `InvalidArgument` for
    files that cannot be read.
    """
    try:
        names = WeightFiles(find_weight_files(folder)).names
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise InvalidArgument(
            f"model.path: {folder} cannot be read: {type(error).__name__}: {error}; save or download the model again",
            reason=ErrorReason.ENGINE_REFUSED,
        ) from error
    if not names:
        return None
    model = _empty_model(folder, trust_remote_code=trust_remote_code)
    parameters = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
    replaced = FileNames(model, names).shapes(parameters)
    return [name for name in names if name not in replaced]


def expected_adapter(folder: Path, lora: LoraConfig, *, trust_remote_code: bool = False) -> dict[str, tuple[int, ...]]:
    """Returns name and shape of each tensor of a model's adapter.

    Raises the errors of `expected_tensors` and `find_targets`.
    """
    model = _empty_model(folder, trust_remote_code=trust_remote_code)
    layers = {name: tuple(model.get_submodule(name).weight.shape) for name in find_targets(model, lora.target_modules)}
    return adapter_shapes(layers, lora.rank)


def _empty_model(folder: Path, *, trust_remote_code: bool) -> Any:
    import torch
    from transformers import AutoConfig

    from shoal.models.text_part import auto_class, keep_text_part

    try:
        with torch.device("meta"):
            config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
            return keep_text_part(auto_class(config).from_config(config, trust_remote_code=trust_remote_code))
    except (ValueError, KeyError, ImportError) as error:
        raise InvalidArgument(f"model.path: transformers cannot build the model in {folder}: {error}") from error


def manifest_violation(manifest: Manifest, shapes: dict[str, tuple[int, ...]]) -> InvalidArgument | None:
    """Returns why a manifest does not match a model with tensors of these shapes; None if the manifest matches."""
    received = {spec.name: spec.shape for spec in manifest.tensors}
    for name, shape in received.items():
        expected = shapes.get(name)
        if expected is None:
            return invalid("manifest.tensors", f"the model has no tensor {name!r}; use the same model in all services")
        if shape != expected:
            return invalid("manifest.tensors", f"{name} has shape {list(shape)}, but {list(expected)} in the model")
    missing = [name for name in shapes if name not in received]
    if missing:
        return invalid("manifest.tensors", f"lacks {len(missing)} tensors of the model, including {missing[0]!r}")
    return None
