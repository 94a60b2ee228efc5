"""Weights that are written tensor by tensor, as the library of safetensors reads them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from services.learner.storage import weights_folder
from services.learner.storage.weights_folder import Form, uniform, write_weights_folder

TENSORS = {"a": torch.randn(3, 5), "b": torch.randn(7), "c": torch.randn(2, 2, 2), "d": torch.tensor(1.5)}
SHAPES = {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_tensors_of_a_file_are_read_back_in_its_type(tmp_path: Path, dtype: torch.dtype) -> None:
    write_weights_folder(tmp_path, uniform(SHAPES, dtype), iter(TENSORS.items()))
    path = tmp_path / "model.safetensors"
    loaded = load_file(path)
    assert loaded.keys() == TENSORS.keys()
    assert all(torch.equal(loaded[name], tensor.to(dtype)) for name, tensor in TENSORS.items())
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_large_weights_are_split_into_files_with_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_folder, "_FILE_BYTES", 64)
    write_weights_folder(tmp_path, uniform(SHAPES, torch.float32), iter(TENSORS.items()))
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    assert index == {
        "metadata": {"total_size": 4 * (15 + 7 + 8 + 1)},
        "weight_map": {"a": names[0], "b": names[1], "c": names[1], "d": names[1]},
    }
    loaded = load_file(tmp_path / names[0]) | load_file(tmp_path / names[1])
    assert all(torch.equal(loaded[name], tensor) for name, tensor in TENSORS.items())


def test_a_tensor_is_asked_for_when_the_one_before_is_in_the_file(tmp_path: Path) -> None:
    sizes: list[int] = []

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for number in range(3):
            sizes.append((tmp_path / "model.safetensors").stat().st_size)
            yield f"t{number}", torch.zeros(1 << 16)

    shapes: dict[str, tuple[int, ...]] = {f"t{number}": (1 << 16,) for number in range(3)}
    write_weights_folder(tmp_path, uniform(shapes, torch.float32), tensors())
    written = [size // (4 << 16) for size in sizes]
    assert written == [0, 1, 2], f"the file had {sizes} bytes when a tensor was asked for"


def test_tensors_of_one_file_may_have_different_types(tmp_path: Path) -> None:
    tensors = {
        "weight": torch.randn(3, 5).bfloat16(),
        "balance": torch.randn(7),
        "mask": torch.tensor([True, False]),
        "count": torch.tensor(3),
    }
    forms = {name: Form(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    write_weights_folder(tmp_path, forms, iter(tensors.items()))
    loaded = load_file(tmp_path / "model.safetensors")
    assert {name: tensor.dtype for name, tensor in loaded.items()} == {name: form.dtype for name, form in forms.items()}
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
