"""What has to be true of a model and of a manifest before an engine touches them."""

from dataclasses import dataclass
from pathlib import Path

from shoal.config.run import RunConfig
from shoal.errors import InvalidArgument
from shoal.models import model_config, resolve_model
from shoal.weights.manifest import Manifest
from shoal.wire import invalid


@dataclass(frozen=True)
class CheckedModel:
    """A model that is there and long enough."""

    folder: Path
    dtype: str
    """The type that its weights are to have in the engine."""
    max_context_tokens: int | None
    """Longest sequence that it was made for; None where its files do not say."""


def checked_model(config: RunConfig) -> CheckedModel:
    """Finds the model. Raises `InvalidArgument` when it is missing or its context is too short."""
    folder = resolve_model(config.model.path, config.model.revision)
    description = model_config(folder)
    longest = description.max_context_tokens
    if longest is not None and config.max_model_len > longest:
        raise InvalidArgument(
            f"model.path: {config.model.path} was made for {longest} tokens, but generator.max_model_len (unset: "
            f"data.max_prompt_tokens + sampling.max_completion_tokens) is {config.max_model_len}: lower them",
            reason="ENGINE_REFUSED",
        )
    dtype = config.generator.dtype
    # vLLM's own "auto" would take a float32 model for bfloat16.
    return CheckedModel(folder, description.dtype if dtype == "auto" else dtype, longest)


def expected_tensors(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of each tensor of a model as transformers knows it, tied ones once, without loading any.

    Raises `InvalidArgument` for a model that transformers cannot make.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    except (ValueError, KeyError, ImportError) as error:
        raise InvalidArgument(f"model.path: transformers cannot make the model in {folder}: {error}") from error
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def manifest_violation(manifest: Manifest, shapes: dict[str, tuple[int, ...]]) -> InvalidArgument | None:
    """Why a manifest does not fit a model with tensors of these shapes; None if it does."""
    given = {spec.name: spec.shape for spec in manifest.tensors}
    for name, shape in given.items():
        expected = shapes.get(name)
        if expected is None:
            return invalid("manifest.tensors", f"the model has no tensor {name!r}; publish the model it was made from")
        if shape != expected:
            return invalid("manifest.tensors", f"{name} has shape {list(shape)}, the model's has {list(expected)}")
    missing = [name for name in shapes if name not in given]
    if missing:
        return invalid("manifest.tensors", f"lacks {len(missing)} tensors of the model, among them {missing[0]!r}")
    return None
