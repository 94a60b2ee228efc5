"""The safetensors files of a model, mapped into memory: only bytes that are read become resident."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

if TYPE_CHECKING:
    from torch import Tensor

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def find_weight_files(folder: Path) -> list[Path]:
    """Lists the files that transformers would read; empty if the weights are not in safetensors.

    Raises `OSError` or `ValueError` when the index of several files cannot be read.
    """
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    if not (folder / _INDEX).is_file():
        return []
    weight_map = json.loads((folder / _INDEX).read_text())["weight_map"]
    return [folder / name for name in sorted(set(weight_map.values()))]


class WeightFiles:
    """The tensors of several safetensors files, by name."""

    def __init__(self, files: Iterable[Path]) -> None:
        """Raises `OSError` or `SafetensorError` for a file that is missing or cut off."""
        self._file_of: dict[str, Any] = {}
        for path in files:
            file: Any = safe_open(path, "pt")
            self._file_of |= dict.fromkeys(file.keys(), file)

    @property
    def names(self) -> list[str]:
        """The names of all tensors, in the order of the files."""
        return list(self._file_of)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def form(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Returns type ("BF16") and shape of a tensor, without reading it."""
        header = self._file_of[name].get_slice(name)
        return header.get_dtype(), tuple(header.get_shape())

    def tensor(self, name: str) -> "Tensor":
        """Returns a tensor as a view of its mapped file; do not write to it."""
        tensor: Tensor = self._file_of[name].get_tensor(name)
        return tensor
