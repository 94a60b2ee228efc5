"""Exports of a model without DeepSpeed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from services.learner.ranks.process_group import ProcessGroup
from services.learner.storage.export import delete_other_exports, export_model
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
    names = ("step-00000010", "step-00000020", "step-00000030", "step-00000020.partial", "step-00000010.deleted")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    delete_other_exports(tmp_path, {"step-00000010", "step-00000030"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010", "step-00000030"]


def test_a_deletion_that_is_interrupted_leaves_no_part_under_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step-00000010").mkdir()
    (tmp_path / "step-00000010" / "config.json").write_text("{}")
    monkeypatch.setattr("services.learner.storage.atomic_folder.shutil.rmtree", lambda *_, **__: None)
    delete_other_exports(tmp_path, set())
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010.deleted"]
