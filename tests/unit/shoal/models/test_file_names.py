from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InvalidArgument
from shoal.models.file_names import FileNames
from tests.support.tiny_experts import make_tiny_experts
from tests.support.tiny_model import make_tiny_model

torch = pytest.importorskip("torch")


def saved(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "glm4_moe", "olmoe", "minimax_m2"])
def test_experts_that_transformers_fuses_become_the_tensors_of_the_files(family: str, tmp_path: Path) -> None:
    model = make_tiny_experts(tmp_path, family)
    names, parameters = FileNames(model), dict(model.named_parameters())
    tensors = dict(names.tensors((name, parameter.detach()) for name, parameter in parameters.items()))
    files = {name: tensor for name, tensor in saved(tmp_path).items() if "e_score_correction_bias" not in name}
    assert len(tensors) > len(parameters) and tensors.keys() == files.keys()
    assert all(torch.equal(tensor, files[name]) for name, tensor in tensors.items())
    shapes = names.shapes({name: tuple(parameter.shape) for name, parameter in parameters.items()})
    assert shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert list(shapes) == list(tensors), "both ends of a publish need the same order"


def test_the_parameters_of_a_plain_model_are_the_tensors_of_its_files(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path), dtype=torch.float32)
    parameters = [(name, parameter.detach()) for name, parameter in model.named_parameters()]
    assert [(name, id(tensor)) for name, tensor in FileNames(model).tensors(iter(parameters))] == [
        (name, id(tensor)) for name, tensor in parameters
    ]


def test_a_model_whose_files_join_parameters_is_refused_with_the_tensor() -> None:
    """GPT-NeoX' files have queries, keys and values in one tensor; so would those of a model that is split on load."""
    from transformers.core_model_loading import Chunk, WeightConverter

    model = make_meta()
    names = FileNames(model)
    names._model._weight_conversions = [
        WeightConverter(
            source_patterns="self_attn.qkv.weight",
            target_patterns=["self_attn.q_proj.weight", "self_attn.k_proj.weight"],
            operations=[Chunk(dim=0)],
        )
    ]
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    with pytest.raises(InvalidArgument, match=r"LlamaForCausalLM cannot be trained.*self_attn\.qkv\.weight"):
        names.shapes(shapes)


def make_meta() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1))


def test_files_that_have_fused_experts_keep_them(tmp_path: Path) -> None:
    model = make_tiny_experts(tmp_path, "qwen3_moe")
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert FileNames(model, list(shapes)).shapes(shapes) == shapes
    assert FileNames(model, list(saved(tmp_path))).shapes(shapes) == FileNames(model).shapes(shapes) != shapes
