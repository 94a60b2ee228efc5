"""Three ranks over gloo load models: at ZeRO stage 3 each has its shards alone, at stage 1 all values of the files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config

from tests.support.ranks import run_ranks
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

NUM_RANKS = 3
SHARDED = ("tied", "untied", "several-files", "gemma3", "gpt2", "tied-bfloat16")
SMALL_BYTES = 16 << 10
"""Frequencies and other buffers."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    models = folder / "models"
    make_tiny_model(models / "tied")
    make_tiny_model(models / "untied", tie_embeddings=False)
    make_tiny_model(models / "tied-bfloat16")
    sizes = {"vocab_size": 250, "hidden_size": 66, "intermediate_size": 130, "num_hidden_layers": 3}
    gemma = Gemma3TextConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    AutoModelForCausalLM.from_config(gemma).save_pretrained(models / "gemma3")
    gpt2 = GPT2Config(vocab_size=250, n_positions=64, n_embd=34, n_layer=2, n_head=2)
    AutoModelForCausalLM.from_config(gpt2).save_pretrained(models / "gpt2")
    tied = AutoModelForCausalLM.from_pretrained(models / "tied").to(torch.bfloat16)
    tied.save_pretrained(models / "several-files", max_shard_size="50KB")
    make_tiny_model(models / "bin")
    torch.save(tied.state_dict(), models / "bin" / "pytorch_model.bin")
    (models / "bin" / "model.safetensors").unlink()
    weights = make_tiny_model(models / "cut-off") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    run_ranks("tests.integration.sharded_loading", (NUM_RANKS,), str(folder))
    return folder


def results_of(folder: Path, model: str) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{model}-{rank}.json").read_text()) for rank in range(NUM_RANKS)]


@pytest.mark.parametrize("model", SHARDED)
def test_gathered_parameters_and_buffers_are_those_of_the_whole_model(folder: Path, model: str) -> None:
    for result in results_of(folder, model):
        assert result["is_sharded"]
        assert result["differing"] == []


@pytest.mark.parametrize("model", SHARDED)
def test_a_rank_never_holds_more_than_its_shard_and_the_largest_module(folder: Path, model: str) -> None:
    for result in results_of(folder, model):
        # The tied head is the largest module: it is sharded before the embedding takes its place.
        bound = (result["whole"] + result["largest"]) / NUM_RANKS + result["largest"] + SMALL_BYTES
        assert result["peak"] <= bound, f"{result['peak']} bytes of {result['whole']}, bound {bound:.0f}"


@pytest.mark.parametrize("model", SHARDED)
def test_below_stage_3_a_rank_reads_the_files_itself_and_gets_the_same_model(folder: Path, model: str) -> None:
    for result in results_of(folder, model):
        assert result["at_stage_1"] == {"by_transformers": False, "differing": []}


def test_a_model_that_is_not_in_safetensors_is_whole_on_every_rank(folder: Path) -> None:
    for result in results_of(folder, "bin"):
        assert not result["is_sharded"]
        assert result["differing"] == []
        assert result["at_stage_1"] == {"by_transformers": True, "differing": []}


def test_files_that_are_cut_off_are_an_error_on_every_rank(folder: Path) -> None:
    for result in results_of(folder, "cut-off"):
        assert result["error"].startswith(f"rank 0: model.path: {folder}/models/cut-off cannot be loaded")
