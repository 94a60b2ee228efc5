"""The collectives of an optimizer step of two ranks over gloo, at every ZeRO stage: kinds, numbers and bytes."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.support.learner_results import assert_same_gradient
from tests.support.ranks import run_ranks
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

FLOAT32 = "torch.float32"
RELEASED = ("3-released-checkpointed", "3-released-checkpointed-frozen", "3-released-checkpointed-lora")
BFLOAT16 = ("1-bfloat16", "1-bfloat16-buckets", "2-bfloat16-buckets")
STAGES = ("0", "0-lora", "0-bfloat16", "1", "1-buckets", *BFLOAT16, "2", "3", "3-bfloat16", *RELEASED)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collectives")
    model = make_tiny_model(folder / "model")
    config = transformers.LlamaConfig.from_pretrained(model)
    # Matrices of more than 100,000 elements: DeepSpeed keeps smaller ones whole at stage 3.
    sizes = {"hidden_size": 320, "intermediate_size": 640, "num_attention_heads": 10, "num_key_value_heads": 10}
    for name, value in {**sizes, "num_hidden_layers": 4}.items():
        setattr(config, name, value)
    transformers.LlamaForCausalLM(config).save_pretrained(model)
    run_ranks("tests.integration.learner_collectives", (2,), str(folder), *STAGES)
    return folder


def result_of(folder: Path, stage: str) -> Any:
    return json.loads((folder / f"{stage}.json").read_text())


def reductions(row: Any) -> list[Any]:
    return [call for call in row["backward"] if "reduce" in call[0]]


def gathers(row: Any) -> list[int]:
    return [call[1] for call in (*row["forward"], *row["backward"]) if call[0] == "all-gather"]


@pytest.mark.parametrize(("stage", "kind"), [("0", "all-reduce"), ("1", "reduce"), ("1-buckets", "reduce")])
def test_below_stage_2_gradients_are_reduced_once_a_step(folder: Path, stage: str, kind: str) -> None:
    result = result_of(folder, stage)
    *others, last = result["rows"]
    assert len(others) >= 2 and not any(row["forward"] or row["backward"] for row in others), result["rows"]
    calls = reductions(last)
    assert {(call[0], call[2]) for call in calls} == {(kind, FLOAT32)}, calls
    num_bytes = sum(call[1] for call in calls)
    # Collectives of small tensors are not recorded.
    assert num_bytes == pytest.approx(4 * result["num_trained"], rel=2e-3), f"{num_bytes} bytes"


def test_at_stage_1_ranks_reduce_while_the_last_rows_backward_pass_runs(folder: Path) -> None:
    last = result_of(folder, "1-buckets")["rows"][-1]
    assert last["before"] >= 4, f"{last['before']} of {len(last['backward'])} reductions before the first layer's"


@pytest.mark.parametrize(
    ("stage", "kind"), [("2", "reduce"), ("3", "reduce-scatter"), ("3-bfloat16", "reduce-scatter")]
)
def test_from_stage_2_on_gradients_are_reduced_once_a_row(folder: Path, stage: str, kind: str) -> None:
    result = result_of(folder, stage)
    for row in result["rows"]:
        calls = reductions(row)
        assert {(call[0], call[2]) for call in calls} == {(kind, FLOAT32)}, calls
        num_bytes = sum(call[1] for call in calls)
        assert num_bytes == pytest.approx(4 * result["num_trained"], rel=2e-3), f"{num_bytes} bytes"


@pytest.mark.parametrize(("stage", "kinds"), [("0", set()), ("1", {"all-gather"}), ("2", {"all-gather"})])
def test_ranks_exchange_updated_weights_once_a_step(folder: Path, stage: str, kinds: set[str]) -> None:
    result = result_of(folder, stage)
    assert {call[0] for call in result["apply"]} == kinds
    assert sum(call[1] for call in result["apply"]) == 4 * result["num_trained"] * len(kinds), result["apply"]


@pytest.mark.parametrize(("stage", "width"), [("3", 4), ("3-bfloat16", 2)])
def test_at_stage_3_each_layer_is_one_gather(folder: Path, stage: str, width: int) -> None:
    result = result_of(folder, stage)
    for row in result["rows"][1:]:
        # Layers of this small model stay whole until their backward pass.
        assert gathers(row) == [width * elements for elements in result["gathered"]], row


def test_a_layer_that_was_released_is_gathered_again_as_a_whole(folder: Path) -> None:
    result = result_of(folder, "3-released-checkpointed")
    for row in result["rows"][1:]:
        assert set(gathers(row)) == {4 * elements for elements in result["gathered"]}, row
        assert len(gathers(row)) >= 6, f"{len(gathers(row))} gathers of 4 layers, so none was released"


@pytest.mark.parametrize("stage", ["1", "1-buckets", "2", "3", *RELEASED])
def test_the_gradient_does_not_depend_on_how_it_is_reduced_and_gathered(folder: Path, stage: str) -> None:
    expected = "0-lora" if stage.endswith("lora") else "0"
    frozen = ("model.embed_tokens",) if stage.endswith("frozen") else ()
    assert_same_gradient(folder / f"{stage}.safetensors", folder / f"{expected}.safetensors", without=frozen)


@pytest.mark.parametrize("stage", BFLOAT16)
def test_ranks_sum_the_gradients_of_kept_copies_as_stage_0_does(folder: Path, stage: str) -> None:
    found, expected = (folder / f"{name}.safetensors" for name in (stage, "0-bfloat16"))
    assert_same_gradient(found, expected, limit=1e-5)
