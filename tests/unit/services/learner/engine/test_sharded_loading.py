"""Models whose shards can be read from their files, and models that transformers has to load."""

import errno
import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from services.learner.engine import sharded_loading
from services.learner.engine.converted_tensors import ConvertedTensors
from services.learner.engine.sharded_loading import load_model, shard_obstacle
from services.learner.model.language_model import load_whole, make_empty, read_config
from shoal.errors import InvalidArgument, ResourceExhausted
from shoal.models.weight_files import WeightFiles
from tests.support.tiny_model import make_tiny_model


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_shards_of_a_model_in_safetensors_can_be_read(tmp_path: Path, tie_embeddings: bool) -> None:
    assert shard_obstacle(make_tiny_model(tmp_path, tie_embeddings=tie_embeddings)) is None


def test_tied_weights_may_be_saved_twice(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    _edit_weights(lambda tensors: {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()})(tmp_path)
    assert shard_obstacle(tmp_path) is None


def _edit_weights(edit: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        save_file(edit(load_file(path)), path, metadata={"format": "pt"})

    return change


def test_files_may_have_the_names_of_the_model_without_its_head(tmp_path: Path) -> None:
    make_tiny_model(tmp_path)
    _edit_weights(lambda tensors: {name.removeprefix("model."): tensor for name, tensor in tensors.items()})(tmp_path)
    assert shard_obstacle(tmp_path) is None
    loaded, whole = _load(tmp_path).state_dict(), load_whole(tmp_path, torch.float32).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in whole.items())


def _as_bin(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _rename(tensors: dict[str, Any]) -> dict[str, Any]:
    return {f"policy.{name}": tensor for name, tensor in tensors.items()}


def _as_mixture_of_experts(folder: Path) -> None:
    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_experts=2,
        moe_intermediate_size=8,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)


def _without_an_expert(folder: Path) -> None:
    _as_mixture_of_experts(folder)
    path = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if ".experts.1.up_proj" not in name}
    save_file(tensors, path, metadata={"format": "pt"})


def _quantized(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"quant_method": "fp8"}}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_as_bin, r"model\.safetensors\.index\.json"),
        (_edit_weights(_rename), r"no tensor model\.embed_tokens\.weight"),
        (
            _edit_weights(lambda tensors: tensors | {"model.norm.weight": torch.ones(3)}),
            r"model\.norm\.weight is F32 of shape \[3\], not .* \[64\]",
        ),
        (
            _edit_weights(lambda tensors: tensors | {"model.norm.weight": torch.ones(64, dtype=torch.int8)}),
            r"model\.norm\.weight is I8 of shape \[64\]",
        ),
        (
            _edit_weights(lambda tensors: tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}),
            r"ties lm_head\.weight to model\.embed_tokens\.weight",
        ),
        (_without_an_expert, "cannot convert the tensors of a Qwen3MoeForCausalLM: Sizes of tensors must match"),
        (_quantized, "files are quantized"),
    ],
    ids=["bin", "renamed", "shape", "type", "tied", "experts", "quantized"],
)
def test_a_model_whose_files_have_another_form_is_named(
    tmp_path: Path, change: Callable[[Path], None], reason: str
) -> None:
    make_tiny_model(tmp_path)
    change(tmp_path)
    obstacle = shard_obstacle(tmp_path) or "none"
    assert re.search(reason, obstacle), obstacle


def test_each_expert_is_a_part_of_its_own_and_a_divided_tensor_is_not(tmp_path: Path) -> None:
    _as_mixture_of_experts(tmp_path)
    files = WeightFiles([tmp_path / "model.safetensors"])
    with torch.device("meta"):
        lm = make_empty(read_config(tmp_path), torch.float32)
    group = ConvertedTensors(lm, files).group_of("model.layers.0.mlp.experts.gate_up_proj")
    assert group.num_parts == 2
    experts = "model.layers.0.mlp.experts"
    halves = [files.tensor(f"{experts}.1.{half}_proj.weight") for half in ("gate", "up")]
    assert torch.equal(group.part(1)[f"{experts}.gate_up_proj"], torch.cat(halves)[None])


class Alone:
    """The process group of a single rank."""

    rank, device = 0, torch.device("cpu")
    raising_on_all = staticmethod(nullcontext)

    def all_gather(self, own: bytes) -> list[bytes]:
        return [own]


def _load(folder: Path) -> Any:
    group: Any = Alone()
    return load_model(folder, torch.float32, sharding={"stage": 0}, process_group=group)


def _failing(error: Exception) -> Callable[..., Any]:
    def fail(*values: Any, **options: Any) -> Any:
        raise error

    return fail


def _host_error() -> Exception:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58)
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.AcceleratorError("CUDA error: out of memory"),
        _host_error(),
        MemoryError("Unable to allocate"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("is_mapped", [True, False])
def test_full_memory_is_no_fault_of_the_model_and_names_the_fields_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_mapped: bool
) -> None:
    make_tiny_model(tmp_path)
    if not is_mapped:
        _as_bin(tmp_path)
    kind = AutoModelForCausalLM
    monkeypatch.setattr(*((sharded_loading, "make_empty") if is_mapped else (kind, "from_pretrained")), _failing(error))
    monkeypatch.setattr(sharded_loading, "shard_obstacle", lambda *values, **options: None if is_mapped else "no files")
    with pytest.raises(ResourceExhausted) as full:
        _load(tmp_path)
    for part in ("launch.num_learner_ranks", "learner.zero_stage", "generator.gpu_memory_utilization", str(error)):
        assert part in full.value.message, f"{part} is missing: {full.value.message}"


def test_a_broken_gpu_is_no_fault_of_the_model_and_an_unreadable_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_model(tmp_path)
    monkeypatch.setattr(sharded_loading, "shard_obstacle", lambda *values, **options: None)
    monkeypatch.setattr(
        WeightFiles, "tensor", _failing(torch.AcceleratorError("CUDA error: unspecified launch failure"))
    )
    with pytest.raises(torch.AcceleratorError, match="launch failure"):
        _load(tmp_path)
    monkeypatch.setattr(WeightFiles, "tensor", _failing(RuntimeError("the shapes differ")))
    with pytest.raises(InvalidArgument, match=r"model\.path.*the shapes differ"):
        _load(tmp_path)
