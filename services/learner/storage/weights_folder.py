"""Weights written as safetensors one tensor at a time, so that the writer never holds more than one.

The library writes a file from all its tensors at once. The format is a header of JSON with the place of each tensor,
then their bytes (github.com/huggingface/safetensors).
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]

_FILE_BYTES = 4 << 30
"""Most bytes of one file, unless a single tensor has more."""
_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_weights_folder(
    folder: Path, shapes: Shapes, tensors: Iterator[tuple[str, Tensor]], dtype: torch.dtype
) -> None:
    """Writes tensors in `dtype` into a folder, with an index if there are several files, and syncs none to disk.

    `tensors` yields the tensors of `shapes` in that order. Raises `OSError` when a file cannot be written.
    """
    files = _split(shapes, dtype.itemsize)
    names = [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    if len(files) == 1:
        names = ["model.safetensors"]
    for name, part in zip(names, files, strict=True):
        write_weights_file(folder / name, part, tensors, dtype)
    if len(files) > 1:
        weight_map = {tensor: name for name, part in zip(names, files, strict=True) for tensor in part}
        size = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def _split(shapes: Shapes, itemsize: int) -> list[dict[str, tuple[int, ...]]]:
    files: list[dict[str, tuple[int, ...]]] = [{}]
    size = 0
    for name, shape in shapes.items():
        num_bytes = math.prod(shape) * itemsize
        if files[-1] and size + num_bytes > _FILE_BYTES:
            files.append({})
            size = 0
        files[-1][name] = shape
        size += num_bytes
    return files


def write_weights_file(path: Path, shapes: Shapes, tensors: Iterator[tuple[str, Tensor]], dtype: torch.dtype) -> None:
    """Writes the tensors of `shapes`, which `tensors` yields next, in `dtype`. Raises `OSError` as the folder."""
    with path.open("wb") as file:
        header = _header(shapes, dtype)
        file.write(struct.pack("<Q", len(header)) + header)
        for expected in shapes:
            name, tensor = next(tensors)
            assert (name, tuple(tensor.shape)) == (expected, shapes[name])
            file.write(tensor.detach().to("cpu", dtype).contiguous().flatten().view(torch.uint8).numpy())


def _header(shapes: Shapes, dtype: torch.dtype) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, shape in shapes.items():
        end = start + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _TYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    # Readers map the file: the tensors begin at a multiple of 8.
    return text.ljust(len(text) + -len(text) % 8)
