from pathlib import Path

import pytest

from services.generator.model_check import (
    checked_model,
    expected_adapter,
    expected_tensors,
    manifest_violation,
    tensors_to_keep,
)
from shoal.config.run import RunConfig
from shoal.config.tables.lora import LoraConfig
from shoal.errors import InvalidArgument
from shoal.weights.manifest import Manifest, TensorSpec
from tests.support.configs import run_config

pytest.importorskip("torch")


def config(path: Path, **generator: object) -> RunConfig:
    return run_config(
        str(path),
        data={"sources": [{"path": "unused.jsonl"}], "max_prompt_tokens": 64},
        sampling={"max_completion_tokens": 64},
        generator=generator,
    )


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"model\.path: .*nowhere"):
        checked_model(config(tmp_path / "nowhere"))


def test_a_context_longer_than_the_models_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="context of 2048 tokens"):
        checked_model(config(folder, max_model_len=4096))


def test_the_type_of_the_model_is_the_default(folder: Path) -> None:
    assert checked_model(config(folder)).dtype == "float32"
    assert checked_model(config(folder, dtype="bfloat16")).dtype == "bfloat16"


def test_a_manifest_matches_only_with_exactly_the_tensors_of_the_model_tied_ones_once(folder: Path) -> None:
    shapes = expected_tensors(folder)
    assert shapes["model.embed_tokens.weight"] == (260, 64)
    assert "lm_head.weight" not in shapes
    specs = tuple(TensorSpec(name, "float32", shape) for name, shape in shapes.items())
    assert manifest_violation(Manifest(specs), shapes) is None
    assert "lacks 1 tensors" in str(manifest_violation(Manifest(specs[1:]), shapes))
    other = TensorSpec("lm_head.weight", "float32", (260, 64))
    assert "no tensor 'lm_head.weight'" in str(manifest_violation(Manifest((*specs, other)), shapes))
    turned = TensorSpec(specs[0].name, "float32", specs[0].shape[::-1])
    assert "has shape [64, 260]" in str(manifest_violation(Manifest((turned, *specs[1:])), shapes))


def test_an_adapter_has_two_tensors_for_each_linear_layer_that_is_named_but_none_for_the_head(folder: Path) -> None:
    shapes = expected_adapter(folder, LoraConfig(rank=4))
    assert len(shapes) == 2 * 2 * 7 and not [name for name in shapes if "lm_head" in name]
    down = "base_model.model.model.layers.1.mlp.down_proj.lora_"
    assert (shapes[f"{down}A.weight"], shapes[f"{down}B.weight"]) == ((4, 128), (64, 4))
    assert len(expected_adapter(folder, LoraConfig(rank=4, target_modules=["q_proj", "v_proj"]))) == 2 * 2 * 2
    with pytest.raises(InvalidArgument, match=r'learner\.lora\.target_modules: "qkv" '):
        expected_adapter(folder, LoraConfig(rank=4, target_modules=["qkv"]))


def test_only_the_text_part_of_a_model_that_reads_images_is_published(tmp_path: Path, folder: Path) -> None:
    from services.learner.model.weights import list_weights
    from shoal.models.file_names import FileNames
    from tests.support.tiny_readers import make_tiny_reader

    model = make_tiny_reader(tmp_path, "gemma3-whole")
    shapes = FileNames(model).shapes({weight.name: weight.shape for weight in list_weights(model)})
    assert expected_tensors(tmp_path) == shapes
    assert all(name.startswith("language_model.") for name in shapes)
    assert checked_model(config(tmp_path)).has_other_parts and not checked_model(config(folder)).has_other_parts


def test_an_engine_keeps_the_tensors_of_the_files_that_no_publish_replaces(folder: Path, tmp_path: Path) -> None:
    from tests.support.tiny_experts import make_tiny_experts
    from tests.support.tiny_readers import make_tiny_reader

    assert tensors_to_keep(folder) == []
    make_tiny_experts(tmp_path / "experts", "glm4_moe")
    kept = tensors_to_keep(tmp_path / "experts")
    assert kept and all(name.endswith("e_score_correction_bias") for name in kept), kept
    make_tiny_reader(tmp_path / "reader", "gemma3-whole")
    kept = tensors_to_keep(tmp_path / "reader")
    assert kept and all("vision_tower" in name or "projector" in name for name in kept), kept
    (tmp_path / "bin").mkdir()
    assert tensors_to_keep(tmp_path / "bin") is None, "weights that are not in safetensors"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", "cut off"),
        ("model.safetensors.index.json", "{"),
        ("model.safetensors.index.json", "{}"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "missing.safetensors"}}'),
    ],
)
def test_files_that_cannot_be_read_are_named_with_the_field(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidArgument, match=rf"model\.path: {tmp_path} cannot be read") as error:
        tensors_to_keep(tmp_path)
    assert error.value.reason == "ENGINE_REFUSED"
