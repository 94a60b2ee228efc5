"""Counts the collectives of a rank, by the operations that reach torch's dispatcher."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_KINDS = {
    "allreduce_": "all-reduce",
    "reduce_": "reduce",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_tensor_coalesced_": "reduce-scatter",
    "_allgather_base_": "all-gather",
    "allgather_": "all-gather",
    "allgather_into_tensor_coalesced_": "all-gather",
    "broadcast_": "broadcast",
}


class Collectives(TorchDispatchMode):
    """Records the collectives of large tensors in a context: kind, bytes of the whole tensor, and type.

    The whole tensor is that of all ranks: the output of an all-gather, the input of a reduction.
    """

    def __init__(self, *, min_bytes: int) -> None:
        super().__init__()
        self.calls: list[tuple[str, int, str]] = []
        self._min_bytes = min_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            kind = _KINDS[func._schema.name.removeprefix("c10d::")]
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            whole = max(tensors, key=lambda tensor: tensor.nbytes)
            if whole.nbytes >= self._min_bytes:
                self.calls.append((kind, whole.nbytes, str(whole.dtype)))
        return func(*args, **(kwargs or {}))
