"""Operations that reach a device, counted from torch's dispatcher: about the kernels that a GPU would launch."""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
ALLOCATIONS = (aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default)
"""Operations that compute nothing."""


class Operations(TorchDispatchMode):
    """Counts operations by name, but no views and allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.num_weight_casts = 0
        """Conversions of a parameter to another type."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func._schema.returns
        is_view = any(output.alias_info is not None and not output.alias_info.is_write for output in outputs)
        if not is_view and func not in ALLOCATIONS and func.namespace != "prim":
            self.counts[str(func)] += 1
            is_cast = func is torch.ops.aten._to_copy.default
            self.num_weight_casts += is_cast and isinstance(args[0], torch.nn.Parameter)
        return func(*args, **(kwargs or {}))
