"""Exports have the tensors of the source's files: names, shapes, and those that nothing trains."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from shoal.errors import FailedPrecondition
from tests.support.plain_export import export_trained
from tests.support.published_models import CONFIGS, make_published_model

BALANCE = "model.layers.1.mlp.gate.e_score_correction_bias"


@pytest.mark.parametrize("family", CONFIGS)
def test_an_export_has_the_tensors_of_its_source_and_computes_what_the_trained_model_does(
    tmp_path: Path, family: str
) -> None:
    source, folder = make_published_model(tmp_path / "source", family), tmp_path / "model"
    lm = export_trained(source, folder, moved_by=0.05)
    before, after = load_file(source / "model.safetensors"), load_file(folder / "model.safetensors")
    assert {name: tensor.shape for name, tensor in after.items()} == {name: t.shape for name, t in before.items()}
    still = {name for name in before if torch.equal(before[name], after[name])}
    assert still == ({BALANCE} if family == "glm4-moe" else set()), "all but the buffers have moved"
    tokens = torch.arange(200)[None] * 7 % lm.config.vocab_size
    with torch.no_grad():
        exported = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
        gap = (exported(tokens).logits - lm(tokens).logits).abs().max()
    assert gap == 0, f"logits differ by {gap}"


def test_what_transformers_does_not_load_stays_in_its_own_type(tmp_path: Path) -> None:
    source = make_published_model(tmp_path / "source", "glm4-moe")
    tensors = load_file(source / "model.safetensors")
    extra = {
        "model.layers.2.embed_tokens.weight": torch.randn(3, 4).half(),
        "model.scale": torch.tensor([1.5]).double(),
    }
    save_file(tensors | extra, source / "model.safetensors", {"format": "pt"})
    export_trained(source, tmp_path / "model", moved_by=0.05)
    written = load_file(tmp_path / "model" / "model.safetensors")
    assert written.keys() == tensors.keys() | extra.keys()
    for name, tensor in (extra | {BALANCE: tensors[BALANCE]}).items():
        assert written[name].dtype == tensor.dtype and torch.equal(written[name], tensor), name


def test_an_output_layer_in_the_files_of_a_tied_model_is_not_left_at_its_old_values(tmp_path: Path) -> None:
    source = make_published_model(tmp_path / "source", "llama3")
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    export_trained(source, tmp_path / "model", moved_by=0.05)
    written = load_file(tmp_path / "model" / "model.safetensors")
    assert written.keys() == tensors.keys() - {"lm_head.weight"}


def test_files_of_the_model_without_its_head_are_exported_as_transformers_names_them(tmp_path: Path) -> None:
    source = make_published_model(tmp_path / "source", "llama3")
    tensors = load_file(source / "model.safetensors")
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(bare, source / "model.safetensors", {"format": "pt"})
    export_trained(source, tmp_path / "model", moved_by=0.05)
    assert load_file(tmp_path / "model" / "model.safetensors").keys() == tensors.keys()


def test_buffers_that_cannot_be_found_in_the_files_are_refused_by_name(tmp_path: Path) -> None:
    source = make_published_model(tmp_path / "source", "glm4-moe")
    tensors = load_file(source / "model.safetensors")
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    save_file(bare, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(FailedPrecondition, match="e_score_correction_bias") as raised:
        export_trained(source, tmp_path / "model", moved_by=0.05)
    assert raised.value.reason == "NOT_EXPORTED" and not (tmp_path / "model").exists()
