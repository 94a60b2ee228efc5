"""A learner of recurrent layers on one and two ranks at ZeRO stages, with the model's files in bfloat16."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from services.learner.model.weights import list_weights
from tests.integration.learner_ranks import output_of
from tests.support.learner_results import assert_same_gradient
from tests.support.ranks import run_ranks
from tests.support.tiny_families import save_family

pytestmark = pytest.mark.timeout(900)

STAGES = ("0", "1", "3", "0-lora", "3-lora")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recurrent-stages")
    lm = save_family("qwen3.5", folder / "model")
    for weight in list_weights(lm):
        weight.parameter.data = weight.parameter.data.to(weight.type_beside(torch.bfloat16))
    lm.config.dtype = torch.bfloat16
    lm.save_pretrained(folder / "model")
    run_ranks("tests.integration.learner_ranks", (1, 2), str(folder), *STAGES)
    return folder


def result_of(folder: Path, stage: str, num_ranks: int) -> dict[str, Any]:
    return json.loads((output_of(folder, stage, num_ranks) / "result.json").read_text())


@pytest.mark.parametrize("stage", STAGES)
def test_the_gradient_on_two_ranks_is_that_of_one_at_stage_0(folder: Path, stage: str) -> None:
    """Rows of the ranks have different numbers of buckets, for each of which a recurrent layer runs once."""
    alone = f"0{stage[1:]}"
    files = [output_of(folder, *run) / "gradient.safetensors" for run in ((stage, 2), (alone, 1))]
    assert_same_gradient(*files)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_a_checkpoint_restores_the_weights_and_exports_as_the_learner_does(
    folder: Path, stage: str, num_ranks: int
) -> None:
    result = result_of(folder, stage, num_ranks)
    assert not result["restored_changed_weights"]
    learner, checkpoint, adapter, adapter_of_checkpoint = result["exports"]
    assert learner == checkpoint and adapter == adapter_of_checkpoint
