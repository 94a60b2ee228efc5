"""The loader of an engine's first weights, which spoils each tensor that a publish replaces.

The hashes of a publish cannot show whether each layer computes with what arrived. A layer may keep a copy of its former
weights, for example packed for a kernel, and in low precision the canary would not notice one step's difference. So the
engine starts with weights that are clearly wrong, and vLLM makes all such copies from them. After the first load, any
layer that kept its copy changes the canary's log-probabilities by much more than rounding does.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from torch import Tensor
from vllm.config import LoadConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

FACTOR = -16.0
SHIFT = -8.0
"""Added to vectors and numbers, since many biases, and the weights of some norms, are 0."""


class SpoiledLoader(DefaultModelLoader):
    """Loads a model from its files, and spoils all tensors but those in `keep`, a list in vLLM's extra settings."""

    def __init__(self, load_config: LoadConfig) -> None:
        self._keep = frozenset(load_config.model_loader_extra_config["keep"])
        super().__init__(replace(load_config, load_format="auto", model_loader_extra_config={}))

    def get_all_weights(self, *args: Any) -> Generator[tuple[str, Tensor], None, None]:
        for name, tensor in super().get_all_weights(*args):
            yield name, tensor if name in self._keep else spoiled(tensor)


def spoiled(tensor: Tensor) -> Tensor:
    """Returns a copy of a tensor with values that are wrong. Those of vectors and numbers are also wrong if all are 0.

    Integers, and floats of 8 bits, stay as they are.
    """
    if not tensor.is_floating_point() or tensor.itemsize == 1:
        return tensor
    return tensor * FACTOR + SHIFT if tensor.ndim <= 1 else tensor * FACTOR
