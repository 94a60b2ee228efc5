"""The number and the sizes of a model's attention heads."""

from typing import Any

from shoal.errors import InvalidArgument


def head_sizes(config: Any) -> list[int]:
    """Lists the sizes of the attention heads in a configuration of transformers, each size once, smallest first.

    Most models have a single size. If layers differ, as in Gemma 4, the configuration refuses to name a common size.
    """
    text = config.get_text_config()
    layers = text.per_layer_config if getattr(text, "is_heterogeneous", False) else [text]
    sizes = set()
    for layer in layers:
        # Models without attention are refused later, by name.
        num_heads = getattr(layer, "num_attention_heads", 1)
        sizes.add(getattr(layer, "head_dim", None) or layer.hidden_size // num_heads)
    return sorted(sizes)


def check_heads(num_heads: int, size: int) -> None:
    """Raises `InvalidArgument` when the heads cannot be divided evenly among `size` ranks."""
    if num_heads % size:
        fitting = ", ".join(str(number) for number in range(1, num_heads + 1) if num_heads % number == 0)
        raise InvalidArgument(
            f"learner.sequence_parallel_size ({size}) must divide the model's attention heads ({num_heads}): each rank "
            f"computes attention for its share of the heads. Use one of {fitting} for this model"
        )
