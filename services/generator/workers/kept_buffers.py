"""A correction of vLLM's reload: constants of a layer survive it."""

from functools import wraps
from typing import Any

from vllm.model_executor.model_loader.reload import layerwise


def keep_buffers() -> None:
    """Lets a layer keep, through a load, the values of its buffers that the load does not replace.

    vLLM 0.32 gives each layer with weights new memory at a load, also for its buffers, and fills only what arrives.
    Constants in buffers, such as those of Apertus's activation, would have arbitrary values after each publish.
    """
    materialize = layerwise.materialize_layer
    if hasattr(materialize, "__wrapped__"):
        return

    @wraps(materialize)
    def materialize_layer(layer: Any, info: Any) -> None:
        materialize(layer, info)
        _, buffers = info.kernel_tensors or ({}, {})
        for name, former in buffers.items():
            buffer = layer._buffers.get(name)
            if buffer is not None and buffer.shape == former.shape:
                buffer.copy_(former)

    layerwise.materialize_layer = materialize_layer
