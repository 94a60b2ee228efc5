"""Safetensors files that are read a tensor at a time."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from shoal.models.weight_files import WeightFiles, find_weight_files


def test_tensors_are_found_in_any_of_the_files(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 2), "b": torch.randn(5).to(torch.bfloat16)}
    for name, tensor in tensors.items():
        save_file({name: tensor}, tmp_path / f"{name}.safetensors")
    files = WeightFiles(sorted(tmp_path.iterdir()))
    assert "a" in files and "c" not in files
    assert (files.form("a"), files.form("b")) == (("F32", (3, 2)), ("BF16", (5,)))
    assert all(torch.equal(files.tensor(name), tensor) for name, tensor in tensors.items())


def test_a_file_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.randn(100)}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SafetensorError):
        WeightFiles([path])


def test_the_files_of_a_model_are_those_of_its_index(tmp_path: Path) -> None:
    assert find_weight_files(tmp_path) == []
    index = {"weight_map": {"a": "2.safetensors", "b": "1.safetensors", "c": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "consolidated.safetensors").touch()
    assert find_weight_files(tmp_path) == [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    (tmp_path / "model.safetensors").touch()
    assert find_weight_files(tmp_path) == [tmp_path / "model.safetensors"]
