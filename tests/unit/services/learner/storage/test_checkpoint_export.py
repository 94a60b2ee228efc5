"""Models and adapters from checkpoints, in the form that DeepSpeed writes up to stage 2; tests/integration has all."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from services.learner.model.model_check import check_model
from services.learner.model.policy import load_policy
from services.learner.storage.checkpoint_export import export_checkpoint
from services.learner.storage.checkpoints import FileDigest
from services.learner.storage.export import export_model
from shoal.config import RunConfig
from shoal.errors import FailedPrecondition, InvalidArgument
from tests.support.configs import run_config
from tests.support.plain_export import Parameters, one_rank
from tests.support.published_models import make_published_model
from tests.support.tiny_model import make_tiny_model, make_tokenizer
from tests.support.tiny_readers import make_tiny_reader

TOKENS = torch.arange(40, 80)[None]


def make_config(folder: Path, learner: dict[str, Any]) -> RunConfig:
    model = folder / "source"
    if not model.exists():
        make_tiny_model(model)
    learner = {"compute_dtype": "float32", "zero_stage": 2} | learner
    return run_config(str(model), learner=learner)


def write_checkpoint(
    folder: Path, config: RunConfig, *, without: str = "nothing"
) -> tuple[Path, list[FileDigest], Any]:
    """Writes what is trained, after a change of all of it; returns folder, digests and the policy."""
    policy = load_policy(Path(config.model.path), config.learner, seed=config.run.seed)
    generator = torch.Generator().manual_seed(2)
    state = {}
    for name, parameter in policy.named_parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
            state[name] = parameter.data
    path = folder / "checkpoint" / "state" / "mp_rank_00_model_states.pt"
    path.parent.mkdir(parents=True)
    torch.save({"module": {name: tensor for name, tensor in state.items() if without not in name}}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return folder / "checkpoint", [FileDigest("state/" + path.name, path.stat().st_size, digest)], policy


def distribution(lm: Any) -> torch.Tensor:
    with torch.no_grad():
        return torch.log_softmax(lm(TOKENS).logits, -1)


def expected(policy: Any) -> torch.Tensor:
    """The distributions of a policy, whose own model gives only scores."""
    policy.lm.set_attn_implementation("eager")
    return distribution(policy.lm.eval())


def test_a_checkpoint_of_adapters_gives_the_merged_model_and_the_adapter(tmp_path: Path) -> None:
    config = make_config(tmp_path, {"lora": {"rank": 4, "alpha": 8, "rslora": True}})
    checkpoint, files, policy = write_checkpoint(tmp_path, config)
    for name, alone in (("model", False), ("alone", True)):
        (tmp_path / name).mkdir()
        export_checkpoint(config, checkpoint, files, tmp_path / name, adapter_only=alone)
    wanted = expected(policy)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(distribution(merged), wanted, atol=1e-5, rtol=0)
    base = AutoModelForCausalLM.from_pretrained(config.model.path)
    assert float((distribution(base) - wanted).abs().mean()) > 1e-3, "the adapters do nothing"
    adapted = PeftModel.from_pretrained(base, tmp_path / "alone" / "adapter")
    torch.testing.assert_close(distribution(adapted), wanted, atol=1e-5, rtol=0)
    assert [path.name for path in (tmp_path / "alone").iterdir()] == ["adapter"]
    for path in (tmp_path / "alone" / "adapter").iterdir():
        assert path.read_bytes() == (tmp_path / "model" / "adapter" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("frozen", [["model.embed_tokens", "model.layers.0."], ["model.layers.1.mlp"]])
def test_a_checkpoint_of_a_part_gives_the_whole_model(tmp_path: Path, frozen: list[str]) -> None:
    config = make_config(tmp_path, {"freeze": frozen})
    checkpoint, files, policy = write_checkpoint(tmp_path, config)
    (tmp_path / "model").mkdir()
    export_checkpoint(config, checkpoint, files, tmp_path / "model")
    written = load_file(tmp_path / "model" / "model.safetensors")
    trained = dict(policy.lm.named_parameters())
    original = load_file(Path(config.model.path) / "model.safetensors")
    assert written.keys() == trained.keys()
    assert all(torch.equal(written[name], trained[name].data) for name in written)
    same = {name for name in written if torch.equal(written[name], original[name])}
    assert same and all(name.startswith(tuple(frozen)) for name in same)


@pytest.mark.parametrize("family", ["qwen2.5", "glm4-moe", "pythia"])
def test_a_checkpoint_gives_the_files_that_the_learner_exports(tmp_path: Path, family: str) -> None:
    make_published_model(tmp_path / "source", family)
    config = make_config(tmp_path, {})
    checkpoint, files, policy = write_checkpoint(tmp_path, config)
    (tmp_path / "model").mkdir()
    export_checkpoint(config, checkpoint, files, tmp_path / "model")
    engine: Any = Parameters(policy.lm)
    export_model(engine, policy.lm, config.model, tmp_path / "learners", one_rank(), dtype="float32")
    names = {path.name for path in (tmp_path / "learners").iterdir()}
    assert names == {path.name for path in (tmp_path / "model").iterdir()}
    for name in names:
        assert (tmp_path / "model" / name).read_bytes() == (tmp_path / "learners" / name).read_bytes(), name


def test_parts_that_are_not_trained_are_exported_as_they_are_in_the_models_files(tmp_path: Path) -> None:
    make_tiny_reader(tmp_path / "source", "gemma3-whole")
    make_tokenizer().save_pretrained(tmp_path / "source")
    config = make_config(tmp_path, {})
    check_model(tmp_path / "source", config.learner)
    checkpoint, files, policy = write_checkpoint(tmp_path, config)
    (tmp_path / "model").mkdir()
    export_checkpoint(config, checkpoint, files, tmp_path / "model")
    engine: Any = Parameters(policy.lm)
    export_model(engine, policy.lm, config.model, tmp_path / "learners", one_rank(), dtype="float32")
    written, original = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "source"))
    assert (tmp_path / "learners" / "model.safetensors").read_bytes() == (
        tmp_path / "model" / "model.safetensors"
    ).read_bytes()
    assert written.keys() == original.keys()
    same = {name for name in written if torch.equal(written[name], original[name])}
    assert same == {name for name in written if name.startswith(("vision_tower.", "multi_modal_projector."))}
    whole = AutoModelForImageTextToText.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(distribution(whole), expected(policy), atol=1e-5, rtol=0)


def test_parts_that_the_models_files_lack_are_refused_before_training(tmp_path: Path) -> None:
    source = tmp_path / "source"
    make_tiny_reader(source, "gemma3-whole")
    torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    with pytest.raises(InvalidArgument, match=r"model\.path: .*save_pretrained"):
        check_model(source, make_config(tmp_path, {}).learner)


@pytest.mark.parametrize(("named", "exported"), [({"export_dtype": "float32"}, "float32"), ({}, "bfloat16")])
def test_weights_and_configuration_have_the_type_that_the_checkpoint_names_or_else_the_models(
    tmp_path: Path, named: dict[str, str], exported: str
) -> None:
    config = make_config(tmp_path, {})
    source = Path(config.model.path) / "config.json"
    values = json.loads(source.read_text())
    source.write_text(json.dumps(values | {"dtype": "bfloat16", "torch_dtype": "bfloat16"}))
    checkpoint, files, _ = write_checkpoint(tmp_path, config)
    (checkpoint / "learner.json").write_text(json.dumps(named))
    (tmp_path / "model").mkdir()
    export_checkpoint(config, checkpoint, files, tmp_path / "model")
    written = load_file(tmp_path / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {getattr(torch, exported)}
    values = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (values["dtype"], values["torch_dtype"]) == (exported, exported)


@pytest.mark.parametrize("learner", [{}, {"freeze": ["model.layers.0."]}, {"lora": {"rank": 4}}])
def test_a_checkpoint_without_all_that_is_trained_is_refused(tmp_path: Path, learner: dict[str, Any]) -> None:
    config = make_config(tmp_path, learner)
    checkpoint, files, _ = write_checkpoint(tmp_path, config, without="layers.1.mlp")
    with pytest.raises(FailedPrecondition, match=r"model\.layers\.1\.mlp"):
        export_checkpoint(config, checkpoint, files, tmp_path / "model")
