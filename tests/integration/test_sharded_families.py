"""Two ranks over gloo load every family: converted tensors are read as transformers makes them, a group at a time."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.ranks import run_ranks
from tests.support.tiny_experts import make_tiny_experts
from tests.support.tiny_families import FAMILIES, READERS, save_family
from tests.support.tiny_readers import make_tiny_reader

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NUM_RANKS = 2
LOADED_WHOLE: set[str] = set()
"""Families that every rank loads whole."""
IN_BFLOAT16 = ("qwen3.5", "falcon-h1", "kimi-linear", "nemotron-h", "deepseek-v3", "ernie4_5_moe")
"""Families with tensors that stay float32 beside others in bfloat16."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        save_with_random_buffers(family, folder / "models" / family)
    for family in READERS:
        make_tiny_reader(folder / "models" / family, family)
    for family in IN_BFLOAT16:
        if family in FAMILIES:
            (folder / "models" / f"{family}-bfloat16").symlink_to(folder / "models" / family)
        else:
            make_tiny_experts(folder / "models" / f"{family}-bfloat16", family)
    run_ranks("tests.integration.sharded_loading", (NUM_RANKS,), str(folder))
    return folder


def save_with_random_buffers(family: str, folder: Path) -> None:
    lm = save_family(family, folder)
    saved = lm.state_dict()
    for name, buffer in lm.named_buffers():
        if name in saved:
            torch.nn.init.normal_(buffer)
    lm.save_pretrained(folder)


def results_of(folder: Path, family: str) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{family}-{rank}.json").read_text()) for rank in range(NUM_RANKS)]


@pytest.mark.parametrize("family", [*FAMILIES, *READERS, *(f"{family}-bfloat16" for family in IN_BFLOAT16)])
def test_a_family_has_the_values_of_the_whole_model_at_stage_3_and_below(folder: Path, family: str) -> None:
    is_whole = family in LOADED_WHOLE
    for result in results_of(folder, family):
        assert result["is_sharded"] is not is_whole
        assert result["differing"] == []
        assert result["at_stage_1"] == {"by_transformers": is_whole, "differing": []}


@pytest.mark.parametrize("family", ["qwen3-moe", "mixtral", "glm4.5-moe", "qwen3.5-moe-whole"])
def test_a_rank_converts_the_experts_of_a_layer_one_by_one(folder: Path, family: str) -> None:
    """An expert's two halves are copied to a stack each, and then beside each other."""
    for result in results_of(folder, family):
        bound = 2 * result["largest"] / 4
        assert result["reading"] <= bound, f"{result['reading']} bytes, but two experts take {bound:.0f}"


@pytest.mark.parametrize("family", ["qwen3.5", "qwen3.5-whole", "gemma3-whole"])
def test_renamed_tensors_are_read_from_the_mapped_files_without_a_copy(folder: Path, family: str) -> None:
    for result in results_of(folder, family):
        assert result["reading"] == 0, f"{result['reading']} bytes"
