"""Weights written as safetensors one tensor at a time, so that the writer never has more than one tensor in memory.

The library needs all tensors of a file at once to write the file. The format is a JSON header with the place of each
tensor, and then the bytes of the tensors (github.com/huggingface/safetensors).
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from services.learner.model.adapters import peft_config
from shoal.config.tables.lora import ALL_LINEAR, LoraConfig
from shoal.config.tables.model import ModelConfig
from shoal.models.model_folder import hub_revision

_FILE_BYTES = 4 << 30
"""The largest size of a file in bytes, unless a single tensor is larger."""
ADAPTER_FOLDER = "adapter"
"""The name of the folder within the merged model's folder."""


@dataclass(frozen=True)
class Form:
    """The type and shape of a tensor in a file."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """The number of bytes of the tensor's values."""
        return math.prod(self.shape) * int(self.dtype.itemsize)


Forms = Mapping[str, Form]

_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def uniform(shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> Forms:
    """Returns the forms of tensors that all have one type."""
    return {name: Form(shape, dtype) for name, shape in shapes.items()}


def write_weights_folder(folder: Path, forms: Forms, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Writes each tensor in its form into a folder. Several files get an index. Does not sync the files.

    `tensors` yields the tensors of `forms` in the same order. Raises `OSError` when a file cannot be written.
    """
    files = _split(forms)
    names = [f"model-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
    if len(files) == 1:
        names = ["model.safetensors"]
    for name, part in zip(names, files, strict=True):
        write_weights_file(folder / name, part, tensors)
    if len(files) > 1:
        weight_map = {tensor: name for name, part in zip(names, files, strict=True) for tensor in part}
        size = sum(form.num_bytes for form in forms.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def _split(forms: Forms) -> list[dict[str, Form]]:
    files: list[dict[str, Form]] = [{}]
    size = 0
    for name, form in forms.items():
        if files[-1] and size + form.num_bytes > _FILE_BYTES:
            files.append({})
            size = 0
        files[-1][name] = form
        size += form.num_bytes
    return files


def write_weights_file(path: Path, forms: Forms, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Writes the tensors of `forms`, which `tensors` yields next. Raises `OSError` when the file cannot be written."""
    with path.open("wb") as file:
        header = _header(forms)
        file.write(struct.pack("<Q", len(header)) + header)
        for expected, form in forms.items():
            name, tensor = next(tensors)
            assert (name, tuple(tensor.shape)) == (expected, form.shape)
            file.write(tensor.detach().to("cpu", form.dtype).contiguous().flatten().view(torch.uint8).numpy())


def _header(forms: Forms) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, form in forms.items():
        end = start + form.num_bytes
        header[name] = {"dtype": _TYPES[form.dtype], "shape": list(form.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    # Readers map the file: the tensors begin at a multiple of 8.
    return text.ljust(len(text) + -len(text) % 8)


def write_adapter_folder(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Iterator[tuple[str, Tensor]],
    lora: LoraConfig,
    model: ModelConfig,
) -> None:
    """Writes adapters of `model` in float32, with peft's configuration, into a new folder.

    `tensors` yields the tensors of `shapes` in the same order. Raises `OSError` when a file cannot be written.
    """
    folder.mkdir()
    write_weights_file(folder / "adapter_model.safetensors", uniform(shapes, torch.float32), tensors)
    targets = lora.target_modules
    if targets == [ALL_LINEAR]:
        targets = sorted({name.rpartition(".lora_")[0].rpartition(".")[2] for name in shapes})
    revision = hub_revision(model.path, model.revision)
    peft_config(lora, targets, base=model.path, revision=revision).save_pretrained(folder)
