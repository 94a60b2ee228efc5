"""Two ranks over gloo at ZeRO 3 in bfloat16: what decides decays stays float32, and experts compute in bfloat16."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from services.learner.model.weights import list_weights
from tests.support.ranks import run_ranks
from tests.support.tiny_families import save_family

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

IN_FLOAT32 = {
    f"model.layers.{layer}.linear_attn.{name}" for layer in (0, 1) for name in ("A_log", "dt_bias", "norm.weight")
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("recurrent")
    lm = save_family("qwen3.5-moe", folder / "model", moe_intermediate_size=208)
    for weight in list_weights(lm):
        weight.parameter.data = weight.parameter.data.to(weight.type_beside(torch.bfloat16))
    lm.save_pretrained(folder / "model")
    run_ranks("tests.integration.recurrent_learner", (2,), str(folder))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_a_publish_has_recurrent_parameters_in_float32_and_the_others_in_bfloat16(
    results: list[dict[str, Any]],
) -> None:
    for result in results:
        for dtypes in (result["manifest"], result["whole"]):
            assert {name for name, dtype in dtypes.items() if dtype == "float32"} == IN_FLOAT32
            assert set(dtypes.values()) == {"float32", "bfloat16"}
        assert result["rounded"] == []


def test_a_step_computes_with_decays_in_float32(results: list[dict[str, Any]]) -> None:
    assert {result["computed"] for result in results} == {"torch.float32"}


def test_experts_are_gathered_in_bfloat16(results: list[dict[str, Any]]) -> None:
    """The smaller of the two matrices is whole on every rank, so it is not gathered."""
    for result in results:
        assert result["experts_rounded"] == {"gate_up_proj": True, "down_proj": False}


def test_a_reference_in_bfloat16_has_the_decays_of_the_files_so_that_the_kl_begins_at_0(
    results: list[dict[str, Any]],
) -> None:
    """Experts that the policy computed in float32 would also make it begin elsewhere."""
    for result in results:
        assert result["applied"]
        assert result["metrics"]["objective/kl"] == 0, result["metrics"]


def test_a_frozen_model_under_adapters_has_the_decays_of_its_files(results: list[dict[str, Any]]) -> None:
    for result in results:
        adapters = result["adapters"]
        assert adapters["applied"]
        for name, values in adapters["A_log"].items():
            assert torch.tensor(values).ne(torch.tensor(values).bfloat16()).any(), f"{name} is rounded"


def test_an_export_has_the_types_of_a_publish_and_the_values_of_the_learner(results: list[dict[str, Any]]) -> None:
    result = results[0]
    written = load_file(Path(result["exported"]) / "model.safetensors")
    assert {name for name, tensor in written.items() if tensor.dtype == torch.float32} == IN_FLOAT32
    for name, values in result["A_log"].items():
        assert torch.equal(written[name], torch.tensor(values)), name
