"""Exports of a model without DeepSpeed."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, GenerationConfig

from services.learner.engine.whole_weights import adapter_shapes, whole_adapters, whole_weights
from services.learner.model.language_model import load_whole
from services.learner.model.packing import sequence_row
from services.learner.model.policy import load_policy
from services.learner.model.weights import list_weights
from services.learner.ranks.process_group import ProcessGroup
from services.learner.storage.export import delete_other_exports, export_model
from shoal.config.learner import LearnerConfig
from shoal.config.lora import LoraConfig
from shoal.config.model import ModelConfig
from shoal.errors import FailedPrecondition, InvalidArgument
from tests.support.tiny_model import make_tiny_model


class Parameters:
    """A fake engine for exports, which counts the tensors that it yields."""

    def __init__(self, lm: Any) -> None:
        self.lm = lm
        self.num_given = 0
        self.shapes = {name: tuple(parameter.shape) for name, parameter in lm.named_parameters()}

    def full_parameters(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.lm.named_parameters():
            self.num_given += 1
            yield name, parameter.data


def one_rank() -> ProcessGroup:
    process_group = object.__new__(ProcessGroup)
    process_group.rank, process_group.size = 0, 1
    return process_group


def export(source: Path, folder: Path) -> None:
    lm = AutoModelForCausalLM.from_pretrained(source)
    engine: Any = Parameters(lm)
    try:
        export_model(engine, lm, ModelConfig(path=str(source)), folder, one_rank(), dtype=torch.float32)
    finally:
        assert engine.num_given == len(list(lm.parameters())), "the other ranks gather every tensor"


def test_a_generation_config_that_transformers_would_not_write_is_exported_unchanged(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source")
    own = json.loads((source / "generation_config.json").read_text()) | {"do_sample": False, "temperature": 0.7}
    (source / "generation_config.json").write_text(json.dumps(own))
    export(source, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "generation_config.json").read_text()) == own


def test_a_model_without_a_generation_config_gets_one(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source")
    (source / "generation_config.json").unlink()
    export(source, tmp_path / "model")
    assert GenerationConfig.from_pretrained(tmp_path / "model").eos_token_id is not None


def test_the_files_of_an_export_follow_the_umask(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source")
    before = os.umask(0o027)
    try:
        export(source, tmp_path / "model")
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "model").iterdir()}
    assert "model.safetensors" in modes and set(modes.values()) == {"0o640"}, modes


def test_an_export_without_a_tokenizer_raises_and_leaves_nothing(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).unlink()
    with pytest.raises(InvalidArgument, match="no tokenizer can be loaded"):
        export(source, tmp_path / "run" / "model")
    assert not (tmp_path / "run").exists()


def test_an_export_that_transformers_refuses_to_write_raises_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_tiny_model(tmp_path / "source")

    def refuse(folder: Path) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(
        "services.learner.storage.export.load_tokenizer", lambda model: SimpleNamespace(save_pretrained=refuse)
    )
    with pytest.raises(FailedPrecondition, match="the model cannot be exported: no such thing"):
        export(source, tmp_path / "run" / "model")
    assert not (tmp_path / "run").exists()


def test_exports_that_are_not_kept_are_deleted_with_what_an_interruption_left(tmp_path: Path) -> None:
    names = (
        "step-00000010",
        "step-00000020",
        "step-00000030",
        "step-00000020.partial",
        "step-00000010.deleted.deleted",
    )
    for name in (*names, "mine", "step-00000020.bak"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    delete_other_exports(tmp_path, {"step-00000010", "step-00000030"})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("mine", "step-00000010", "step-00000020.bak", "step-00000030")
    ]


def test_a_deletion_that_is_interrupted_leaves_no_part_under_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step-00000010").mkdir()
    (tmp_path / "step-00000010" / "config.json").write_text("{}")
    monkeypatch.setattr("services.learner.storage.atomic_folder.shutil.rmtree", lambda *_, **__: None)
    delete_other_exports(tmp_path, set())
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010.deleted"]


class Adapted(Parameters):
    """A fake engine of a model with adapters, which move its log-probabilities."""

    def __init__(self, source: Path, lora: LoraConfig) -> None:
        load = partial(load_whole, quantization=lora.quantization)
        policy = load_policy(source, LearnerConfig(compute_dtype="float32", lora=lora), seed=1, load=load)
        self.policy = policy
        super().__init__(policy.lm)
        self.weights = list_weights(policy.lm)
        self.shapes = {weight.name: weight.shape for weight in self.weights}
        self.adapter_shapes = adapter_shapes(self.weights)
        for weight in self.weights:
            if weight.adapter is not None:
                weight.adapter.b_OR.data.normal_(std=0.05, generator=torch.Generator().manual_seed(2))

    def full_parameters(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        return whole_weights(self.weights, dtype, is_sharded=False)

    def adapter_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return whole_adapters(self.weights, is_sharded=False)


@pytest.mark.parametrize("targets", [["all-linear"], ["q_proj", "model.layers.1.mlp.up_proj"]])
def test_transformers_and_peft_load_the_merged_model_and_the_adapter_and_they_agree(
    tmp_path: Path, targets: list[str]
) -> None:
    source = make_tiny_model(tmp_path / "source")
    lora = LoraConfig(rank=4, alpha=8, rslora=True, dropout=0.1, target_modules=targets)
    engine: Any = Adapted(source, lora)
    folder = tmp_path / "model"
    model = ModelConfig(path=str(source), revision="v2")  # A folder has no revisions.
    export_model(engine, engine.lm, model, folder, one_rank(), dtype=torch.float32, lora=lora)
    merged, base = AutoModelForCausalLM.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(source)
    tokens = torch.arange(40, 80)[None]
    with torch.no_grad():
        unadapted = torch.log_softmax(base(tokens).logits, -1)
        adapted = torch.log_softmax(PeftModel.from_pretrained(base, folder / "adapter")(tokens).logits, -1)
        expected = torch.log_softmax(merged(tokens).logits, -1)
    difference, moved = float((adapted - expected).abs().max()), float((adapted - unadapted).abs().mean())
    assert difference < 1e-5 and moved > 1e-3, f"they differ by {difference:.2e}, and from the base by {moved:.4f}"
    written = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == str(source) and written["revision"] is None
    assert written["r"] == 4
    others = [path for path in folder.glob("*.json") if str(tmp_path) in path.read_text()]
    assert not others, f"{others} have a path of this machine"
    assert {path.name for path in (folder / "adapter").iterdir()} >= {"adapter_model.safetensors"}


def test_the_export_of_a_4_bit_model_is_a_model_of_plain_weights_that_computes_the_same(tmp_path: Path) -> None:
    source, folder = make_tiny_model(tmp_path / "source"), tmp_path / "model"
    lora = LoraConfig(rank=4, quantization="nf4")
    engine: Any = Adapted(source, lora)
    export_model(engine, engine.lm, ModelConfig(path=str(source)), folder, one_rank(), dtype=torch.float32, lora=lora)
    merged = AutoModelForCausalLM.from_pretrained(folder)
    assert {parameter.dtype for parameter in merged.parameters()} == {torch.float32}
    tokens = torch.arange(40, 80)
    with torch.no_grad():
        expected, _ = engine.policy(sequence_row([tokens.int().numpy()]), 1.0)
        logits = merged(tokens[None]).logits[0, :-1]
    scored = torch.log_softmax(logits, -1).gather(-1, tokens[1:, None]).squeeze(-1)
    torch.testing.assert_close(scored, expected, atol=1e-4, rtol=0)
