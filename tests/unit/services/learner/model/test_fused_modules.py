"""Fused modules of small models, in Triton's interpreter, against the modules that they replace."""

from typing import Any

import pytest

from tests.support.triton_programs import output_of_interpreter

ROTARY = "apply_rotary_pos_emb"
FUSED = {
    "llama": {"LlamaRMSNorm", "LlamaMLP", ROTARY},
    "qwen3": {"Qwen3RMSNorm", "Qwen3MLP", ROTARY},
    "olmo3": {"Olmo3RMSNorm", "Olmo3MLP", ROTARY},
    "gemma3": {"Gemma3RMSNorm", ROTARY},
    "gemma4": {"Gemma4RMSNorm"},
    "cohere": {"CohereMLP"},
    "glm": {"GlmRMSNorm"},
}
"""What has a kernel. Gemma's activation is another, as are Cohere's norm and rotation, and GLM's layer and rotation."""


@pytest.fixture(scope="module")
def models() -> dict[str, dict[str, Any]]:
    found: dict[str, Any] = output_of_interpreter("tests.unit.services.learner.model.fused_models")
    assert found.keys() == FUSED.keys()
    return found


@pytest.mark.parametrize("name", FUSED)
def test_modules_get_the_kernels_of_their_formulas_and_no_others(models: dict[str, dict[str, Any]], name: str) -> None:
    assert {kind.rpartition(".")[2] for kind in models[name]["fused"]} == FUSED[name]


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("value", ["logprobs", "gradient"])
def test_a_fused_model_computes_in_float32_what_the_plain_model_computes(
    models: dict[str, dict[str, Any]], name: str, value: str
) -> None:
    difference = models[name]["float32"][value]
    assert difference <= 1e-5, f"{name}: {value} differ by {difference:.2g} of their norm"


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("value", ["logprobs", "gradient"])
def test_a_fused_model_rounds_in_bfloat16_at_most_twice_as_much_as_the_plain_model(
    models: dict[str, dict[str, Any]], name: str, value: str
) -> None:
    fused, plain = models[name]["bfloat16"][value], models[name]["plain bfloat16"][value]
    assert fused <= 2 * plain, f"{name}: {value} are off by {fused:.2g} of their norm, the plain model's by {plain:.2g}"
