"""A correction of vLLM's rotary embedding on CPUs."""

from functools import wraps
from typing import Any

from torch import Tensor
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding


def rotate_flat_heads() -> None:
    """Lets vLLM's kernel rotate queries and keys of shape [tokens, heads, size], as LFM2 and DeepSeek pass them.

    vLLM 0.32's kernel takes the size of a head as the distance between tokens, and rotates other values. It is right
    for [tokens, heads * size].
    """
    rotate = RotaryEmbedding.forward_cpu
    if hasattr(rotate, "__wrapped__"):
        return

    @wraps(rotate)
    def forward_cpu(self: Any, positions: Tensor, query: Tensor, key: Tensor | None = None) -> Any:
        if query.ndim != 3 or positions.ndim != 1:
            return rotate(self, positions, query, key)
        rotated, keys = rotate(self, positions, query.flatten(1), None if key is None else key.flatten(1))
        return rotated.view(query.shape), None if keys is None or key is None else keys.view(key.shape)

    RotaryEmbedding.forward_cpu = forward_cpu
