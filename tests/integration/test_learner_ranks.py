"""Real DeepSpeed on one and two ranks: the same gradient and the same steps at ZeRO stages.

tests/acceptance/test_learner_stages.py has the other stages.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.integration.learner_ranks import FROZEN, output_of
from tests.support.learner_results import assert_same_gradient, is_measured
from tests.support.ranks import run_ranks
from tests.support.tiny_model import make_tiny_model
from tests.support.train_batches import make_groups

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

STAGES = ("0", "1", "3", "0-lora", "3-lora")
FROZEN_STAGES = ("3-frozen",)
RANDOM_STAGES = ("2-dropout",)
"""Those in which ranks draw different numbers."""
SUMMED_STAGES = ("3-bfloat16",)
"""Those in which each rank has one row, so that a gradient is the sum of two numbers in bfloat16."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one rank and of two ranks, which have done everything at every stage side by side."""
    folder = tmp_path_factory.mktemp("ranks")
    make_tiny_model(folder / "model")
    run_ranks(
        "tests.integration.learner_ranks", (1, 2), str(folder), *STAGES, *FROZEN_STAGES, *RANDOM_STAGES, *SUMMED_STAGES
    )
    return folder


def result_of(folder: Path, stage: str, num_ranks: int) -> dict[str, Any]:
    return json.loads((output_of(folder, stage, num_ranks) / "result.json").read_text())


def gradient_file(folder: Path, stage: str, num_ranks: int) -> Path:
    return output_of(folder, stage, num_ranks) / "gradient.safetensors"


@pytest.mark.parametrize("stage", STAGES)
def test_the_gradient_on_two_ranks_is_that_of_one(folder: Path, stage: str) -> None:
    kind = stage.partition("-")[2]
    replicated = f"0-{kind}" if kind in ("lora", "nf4") else "0"
    assert_same_gradient(gradient_file(folder, stage, 2), gradient_file(folder, replicated, 1))


def test_gradients_in_bfloat16_are_added_in_float32_at_stage_3(folder: Path) -> None:
    gradient = load_file(gradient_file(folder, "3-bfloat16", 2))["model.layers.0.mlp.down_proj.weight"]
    nonzero = gradient[gradient != 0]
    share = float((nonzero != nonzero.bfloat16().float()).float().mean())
    # Of the sums of two numbers with eight bits each, few have eight bits; rounded, all would.
    assert share > 0.3, f"{share:.0%} of the sums of {nonzero.numel()} have more bits than bfloat16"


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_on_two_ranks_reports_the_metrics_of_a_step_on_one(folder: Path, stage: str) -> None:
    one, two = result_of(folder, stage, 1)["first"], result_of(folder, stage, 2)["first"]
    assert one.keys() == two.keys()
    for name in filter(is_measured, one):
        assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_a_step_that_is_not_finite_on_one_rank_is_applied_on_none(folder: Path, stage: str, num_ranks: int) -> None:
    result = result_of(folder, stage, num_ranks)
    applied, skip_reason, version = result["refused"]
    assert not applied and version == result["version"] == 1
    assert skip_reason.endswith("is not finite")
    assert not result["refused_changed_weights"]


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("stage", [*STAGES, *RANDOM_STAGES, *FROZEN_STAGES])
def test_a_restored_learner_takes_the_same_step_to_the_bit(folder: Path, stage: str, num_ranks: int) -> None:
    result = result_of(folder, stage, num_ranks)
    assert result["restored"] == "1.1" and not result["restored_changed_weights"]
    for name, value in result["second"].items():
        if not name.startswith(("time/", "learner_tokens")):
            assert result["second_again"][name] == value, name
    assert stage.endswith("-frozen") or result["reset"] == "2.0"


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_a_learner_that_is_restored_with_changes_obeys_them(folder: Path, stage: int, num_ranks: int) -> None:
    assert result_of(folder, stage, num_ranks)["changed"] == {
        "applied": True, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.25, "clip": 0.125, "kl_coef": 0.3,
    }  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
def test_the_exported_model_computes_what_the_ranks_computed(folder: Path, stage: str) -> None:
    result = result_of(folder, stage, 2)
    lm = AutoModelForCausalLM.from_pretrained(result["export"])
    tokens = torch.from_numpy(make_groups()[0].prompt_token_ids).long()
    with torch.no_grad():
        distribution = torch.log_softmax(lm(tokens[None]).logits[0, :-1], -1)
    expected = distribution.gather(-1, tokens[1:, None]).squeeze(-1).numpy()
    np.testing.assert_allclose(result["canary"], expected, atol=1e-5)


@pytest.mark.parametrize("stage", ["0-lora", "3-lora"])
def test_merged_model_and_adapter_of_an_export_give_the_same_logprobs(folder: Path, stage: str) -> None:
    export = Path(result_of(folder, stage, 2)["export"])
    tokens = torch.from_numpy(make_groups()[0].prompt_token_ids).long()
    merged = AutoModelForCausalLM.from_pretrained(export)
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder / "model"), export / "adapter")
    with torch.no_grad():
        first, second = (torch.log_softmax(lm(tokens[None]).logits[0], -1) for lm in (merged, adapted))
        with adapted.disable_adapter():
            base = torch.log_softmax(adapted(tokens[None]).logits[0], -1)
    assert float((first - base).abs().max()) > 1e-4, "the steps moved nothing"
    torch.testing.assert_close(second, first, atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("stage", [*STAGES, *FROZEN_STAGES])
def test_a_checkpoint_gives_the_folders_that_the_learner_exports(folder: Path, stage: str, num_ranks: int) -> None:
    exported, whole, adapter, alone = result_of(folder, stage, num_ranks)["exports"]
    assert exported == whole and "model.safetensors" in whole
    assert adapter == alone and bool(adapter) == stage.endswith(("lora", "nf4"))


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("stage", ["0", "3"])
def test_a_checkpoint_holds_the_adapters_and_not_the_frozen_model(folder: Path, stage: str, num_ranks: int) -> None:
    whole, adapters = (result_of(folder, name, num_ranks)["checkpoint_bytes"] for name in (stage, f"{stage}-lora"))
    assert adapters < whole / 5, f"{adapters} bytes with adapters, {whole} without"


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("stage", FROZEN_STAGES)
def test_a_frozen_part_keeps_its_weights_and_has_neither_gradient_nor_optimizer_state(
    folder: Path, stage: str, num_ranks: int
) -> None:
    frozen = result_of(folder, stage, num_ranks)["frozen"]
    assert frozen["unchanged"] and all(name.startswith(tuple(FROZEN)) for name in frozen["unchanged"]), frozen
    assert frozen["changed"] == frozen["gradients"], "all the rest is trained"
    assert not any(name.startswith(tuple(FROZEN)) for name in frozen["gradients"])
    if num_ranks == 1:
        assert frozen["optimizer_elements"] == frozen["trained_elements"]


@pytest.mark.parametrize("stage", FROZEN_STAGES)
def test_the_gradient_of_the_trained_part_is_that_of_the_whole_model(folder: Path, stage: str) -> None:
    assert_same_gradient(gradient_file(folder, stage, 2), gradient_file(folder, "0", 1), without=FROZEN)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("stage", FROZEN_STAGES)
def test_a_checkpoint_holds_no_frozen_weights(folder: Path, stage: str, num_ranks: int) -> None:
    whole, part = (result_of(folder, name, num_ranks)["checkpoint_bytes"] for name in (stage[0], stage))
    assert part < whole
