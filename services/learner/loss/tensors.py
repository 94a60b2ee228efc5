"""Objects whose fields are tensors."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns `value` with each tensor changed: a tensor, or a dataclass with tensors or such dataclasses as fields."""
    if isinstance(value, Tensor):
        return change(value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return replace(value, **{field.name: map_tensors(getattr(value, field.name), change) for field in fields(value)})
