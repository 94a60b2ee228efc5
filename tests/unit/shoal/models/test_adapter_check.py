"""The check of the names of adapted layers, with torch and without."""

import json
import sys
from pathlib import Path

import pytest

from shoal.errors import InvalidArgument
from shoal.models import adapter_check
from shoal.models.adapter_check import check_adapter_targets
from tests.support.tiny_families import save_family
from tests.support.tiny_model import make_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model")


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_check, "find_spec", lambda name: None)


def as_gpt2(folder: Path) -> Path:
    """Makes the folder describe a model whose files do not tell its layers, and which has no linear ones."""
    described = json.loads((folder / "config.json").read_text())
    kept = {name: described[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")}
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **kept, **sizes}))
    return folder


@pytest.mark.usefixtures("without_torch")
def test_a_known_architecture_is_checked_without_torch(folder: Path) -> None:
    assert check_adapter_targets(folder, ["q_proj", "model.layers.1.mlp.up_proj"]) == ""
    assert check_adapter_targets(folder, ["all-linear"]) == ""
    with pytest.raises(InvalidArgument, match=r'"Q_proj" .*LlamaForCausalLM .* q_'):
        check_adapter_targets(folder, ["Q_proj"])


@pytest.mark.usefixtures("without_torch")
def test_where_neither_files_nor_torch_can_tell_it_is_said(folder: Path) -> None:
    note = check_adapter_targets(as_gpt2(folder), ["c_attn"])
    assert note.endswith("torch and transformers"), note


def test_another_architecture_is_checked_on_an_empty_model_in_another_process(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="GPT2LMHeadModel"):
        check_adapter_targets(as_gpt2(folder), ["c_attn"])


def test_a_process_that_takes_too_long_or_fails_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_gpt2(folder)
    monkeypatch.setattr(adapter_check, "_TIMEOUT_S", 0.01)
    assert " 0 s" in check_adapter_targets(folder, ["c_attn"])
    monkeypatch.setattr(adapter_check, "_TIMEOUT_S", 60)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert check_adapter_targets(folder, ["c_attn"]).endswith("exit code 1")
    monkeypatch.setattr(sys, "executable", "/bin/echo")
    assert check_adapter_targets(folder, ["c_attn"]).endswith("gave no answer")


def test_experts_that_all_linear_leaves_out_are_counted_and_named_ones_are_refused(tmp_path: Path) -> None:
    lm = save_family("qwen3-moe", tmp_path)
    note = check_adapter_targets(tmp_path, ["all-linear"])
    num_left_out = sum(parameter.numel() for name, parameter in lm.named_parameters() if ".experts." in name)
    num_whole = sum(parameter.numel() for parameter in lm.parameters())
    assert f"{num_left_out:,}" in note and f"{num_whole:,}" in note, note
    names = ["experts.gate_up_proj", "down_proj", "model.layers.0.mlp.experts.3.up_proj", "experts"]
    with pytest.raises(InvalidArgument) as refusal:
        check_adapter_targets(tmp_path, [*names, "q_proj"])
    for name in names:
        kind = "is a Qwen3MoeExperts" if name == "experts" else "belongs to experts, model.layers.0.mlp.experts"
        assert f'"{name}" {kind}' in refusal.value.message, refusal.value.message
