"""Exports of a model without DeepSpeed."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, GenerationConfig

from services.learner.model.packing import sequence_row
from services.learner.storage.export import delete_other_exports, export_model
from shoal.config.tables.lora import LoraConfig
from shoal.config.tables.model import ModelConfig
from shoal.errors import FailedPrecondition, InvalidArgument
from tests.support.plain_export import Adapted, Parameters, export_trained, one_rank
from tests.support.tiny_model import make_tiny_model


def test_a_model_without_a_generation_config_gets_one(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source")
    (source / "generation_config.json").unlink()
    export_trained(source, tmp_path / "model")
    assert GenerationConfig.from_pretrained(tmp_path / "model").eos_token_id is not None


def test_the_files_of_an_export_follow_the_umask(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source")
    before = os.umask(0o027)
    try:
        export_trained(source, tmp_path / "model")
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "model").iterdir()}
    assert "model.safetensors" in modes and set(modes.values()) == {"0o640"}, modes


def test_an_export_without_a_tokenizer_raises_and_leaves_nothing(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).unlink()
    with pytest.raises(InvalidArgument, match="contains no tokenizer"):
        export_trained(source, tmp_path / "run" / "model")
    assert not (tmp_path / "run").exists()


def test_an_export_whose_source_is_damaged_raises_and_leaves_nothing(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source")
    lm = AutoModelForCausalLM.from_pretrained(source)
    whole = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(whole[:1000])
    engine: Any = Parameters(lm)
    with pytest.raises(FailedPrecondition, match="SafetensorError"):
        export_model(engine, lm, ModelConfig(path=str(source)), tmp_path / "model", one_rank(), dtype="float32")
    assert not (tmp_path / "model").exists() and engine.num_given == len(engine.shapes), "all ranks gather everything"


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


@pytest.mark.parametrize("targets", [["all-linear"], ["q_proj", "model.layers.1.mlp.up_proj"]])
def test_transformers_and_peft_load_the_merged_model_and_the_adapter_and_they_agree(
    tmp_path: Path, targets: list[str]
) -> None:
    source = make_tiny_model(tmp_path / "source")
    lora = LoraConfig(rank=4, alpha=8, rslora=True, dropout=0.1, target_modules=targets)
    engine: Any = Adapted(source, lora)
    folder = tmp_path / "model"
    model = ModelConfig(path=str(source), revision="v2")  # A folder has no revisions.
    export_model(engine, engine.lm, model, folder, one_rank(), dtype="float32", lora=lora)
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
    export_model(engine, engine.lm, ModelConfig(path=str(source)), folder, one_rank(), dtype="float32", lora=lora)
    merged = AutoModelForCausalLM.from_pretrained(folder)
    assert {parameter.dtype for parameter in merged.parameters()} == {torch.float32}
    assert (folder / "config.json").read_bytes() == (source / "config.json").read_bytes(), "it names no quantization"
    tokens = torch.arange(40, 80)
    with torch.no_grad():
        expected, _ = engine.policy(sequence_row([tokens.int().numpy()]), 1.0)
        logits = merged(tokens[None]).logits[0, :-1]
    scored = torch.log_softmax(logits, -1).gather(-1, tokens[1:, None]).squeeze(-1)
    torch.testing.assert_close(scored, expected, atol=1e-4, rtol=0)
