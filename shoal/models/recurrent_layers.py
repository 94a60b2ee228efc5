"""Recurrent layers of a model, seen from the model's configuration."""

from typing import Any

_KINDS = {"linear_attention", "conv", "hybrid", "recurrent", "mamba"}
"""Values of `layer_types` in transformers' configurations that stand for layers with a state."""
DELTA_HEAD_SIZE = 128
"""The head size of vLLM's kernel for gated delta rules on a CPU."""


def has_recurrent_layers(config: Any) -> bool:
    """Returns whether some layers of a model of transformers have a state that goes from token to token."""
    return not _KINDS.isdisjoint(getattr(config.get_text_config(), "layer_types", None) or ())


def delta_head_sizes(config: Any) -> set[int]:
    """Returns the head sizes of a model's gated delta rules; none for a model without them."""
    text = config.get_text_config()
    sizes = (getattr(text, name, None) for name in ("linear_key_head_dim", "linear_value_head_dim"))
    return {size for size in sizes if size is not None} if has_recurrent_layers(config) else set()
