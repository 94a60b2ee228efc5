"""Tests of the refusal of models by their names."""

import pytest

from shoal.translate import SYSTEMS, translate
from shoal.translate.sources.settings import Settings
from tests.support.translations import BASE

_FIELDS = {"verl": "actor_rollout_ref.model.path", "roll": "pretrain", "trl": "model_name_or_path"}


@pytest.mark.parametrize(
    ("model", "features"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", ["images"]),
        ("zai-org/GLM-4.1V-9B-Thinking", ["images"]),
        ("OpenGVLab/InternVL3_5-2B-HF", ["images"]),
        ("openbmb/MiniCPM-o-2_6", ["images"]),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", ["images", "mixture-of-experts"]),
        ("Qwen/Qwen3-235B-A22B", ["mixture-of-experts"]),
        ("mistralai/Mixtral-8x7B-v0.1", ["mixture-of-experts"]),
        ("deepseek-ai/DeepSeek-V3-0324", ["mixture-of-experts"]),
        ("openai/gpt-oss-20b", ["mixture-of-experts"]),
        ("zai-org/GLM-5", ["mixture-of-experts"]),
        ("THUDM/chatglm-6b", []),
        ("Qwen/Qwen3-8B", []),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", []),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", []),
        ("deepseek-ai/deepseek-llm-7b-chat", []),
        ("google/gemma-3-1b-it", []),
        ("mistralai/Mistral-Nemo-Instruct-2407", []),
    ],
)
def test_a_model_is_refused_for_the_features_that_its_name_shows(model: str, features: list[str]) -> None:
    for name, field in _FIELDS.items():
        result = translate(SYSTEMS[name], Settings({field: model}))
        reasons = [refusal.reason for refusal in result.blocking if refusal.value == model]
        assert len(reasons) == len(features), f"{name}, {model}: {reasons}"
        assert all(feature in reason for feature, reason in zip(features, reasons, strict=True)), reasons


def test_another_model_resolves_the_refusal() -> None:
    result = translate(SYSTEMS["verl"], Settings({_FIELDS["verl"]: "Qwen/Qwen2.5-VL-7B-Instruct"}), overrides=BASE)
    assert not [refusal for refusal in result.blocking if "images" in refusal.reason]
    assert any("--set model.path" in note for note in result.notes)
