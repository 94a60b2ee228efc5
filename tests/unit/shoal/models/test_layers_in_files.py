"""The linear layers that a model's files tell of, against those of the model that transformers builds."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from shoal.errors import InvalidArgument
from shoal.models.layers_in_files import _LAYERS, layers_in_files
from shoal.models.linear_layers import find_targets
from tests.support.tiny_model import make_tiny_model

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 48, "head_dim": 16,
}  # fmt: skip


def write_header(file: Path, shapes: dict[str, list[int]]) -> None:
    entries = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)


@pytest.mark.parametrize("model_type", _LAYERS)
def test_the_files_tell_what_transformers_builds(tmp_path: Path, model_type: str) -> None:
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SIZES))
    tensors = {name: list(tensor.shape) for name, tensor in lm.state_dict().items()}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    write_header(tmp_path / "model-00001-of-00002.safetensors", dict(list(tensors.items())[::2]))
    write_header(tmp_path / "model-00002-of-00002.safetensors", dict(list(tensors.items())[1::2]))
    built = {name: tuple(lm.get_submodule(name).weight.shape) for name in find_targets(lm, ["all-linear"])}
    assert layers_in_files(tmp_path) == built, model_type
    assert not get_checkpoint_conversion_mapping(model_type), f"transformers renames the tensors of a {model_type}"


def test_files_of_which_the_names_are_not_certain_tell_nothing(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model")
    assert len(layers_in_files(folder) or ()) == 14
    described = json.loads((folder / "config.json").read_text())
    for change in ({"model_type": "gpt2"}, {"auto_map": {"AutoModelForCausalLM": "own.Own"}}):
        (folder / "config.json").write_text(json.dumps(described | change))
        assert layers_in_files(folder) is None, change
    (folder / "config.json").write_text(json.dumps(described))
    write_header(folder / "model.safetensors", {"layers.0.mlp.up_proj.weight": [4, 4]})
    assert layers_in_files(folder) is None, "a checkpoint without the model's own prefix"


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, (2).to_bytes(8, "little") + b"[]"])
def test_a_damaged_file_is_refused_by_its_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"model\.safetensors "):
        layers_in_files(tmp_path)
