"""The names and shapes of the tensors of a LoRA adapter in a publish. The names are those that peft uses."""

from collections.abc import Mapping


def adapter_shapes(linears: Mapping[str, tuple[int, ...]], rank: int) -> dict[str, tuple[int, ...]]:
    """Returns name and shape of each tensor of an adapter, in the order of a publish.

    `linears` has the [outputs, inputs] of each adapted layer, by its name in transformers. A layer's update is
    B @ A, with A of [rank, inputs] and B of [outputs, rank].
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (num_outputs, num_inputs) in linears.items():
        shapes[adapter_name(layer, "A")] = (rank, num_inputs)
        shapes[adapter_name(layer, "B")] = (num_outputs, rank)
    return shapes


def adapter_name(layer: str, factor: str) -> str:
    """Returns the name of a layer's factor, "A" or "B", as peft writes it to a file."""
    return f"base_model.model.{layer}.lora_{factor}.weight"


def layer_of(name: str) -> str:
    """Returns the layer in transformers to which a tensor of an adapter belongs."""
    return name.removeprefix("base_model.model.").rpartition(".lora_")[0]
