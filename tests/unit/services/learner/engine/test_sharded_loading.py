"""Models whose shards can be read from their files, and models that transformers has to load."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from services.learner.engine.sharded_loading import shard_obstacle
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


def _as_bin(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _rename(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}


def _as_mixture_of_experts(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_experts=2,
        moe_intermediate_size=8,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)


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
        (_as_mixture_of_experts, "converts the tensors of a Qwen3MoeForCausalLM"),
    ],
    ids=["bin", "renamed", "shape", "type", "tied", "converted"],
)
def test_a_model_whose_files_have_another_form_is_named(
    tmp_path: Path, change: Callable[[Path], None], reason: str
) -> None:
    make_tiny_model(tmp_path)
    change(tmp_path)
    obstacle = shard_obstacle(tmp_path) or "none"
    assert re.search(reason, obstacle), obstacle
