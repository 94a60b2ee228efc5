"""Tests of settings that several systems share."""

from pathlib import Path
from typing import Any

import pytest

from shoal.config.tables.sampling import MAX_TOP_K
from shoal.translate import SYSTEMS, translate
from shoal.translate.sources.settings import Settings
from tests.support.translations import BASE, ROLL_GUIDE, config_of, translate_values


def test_stop_strings_and_chat_templates_are_translated_for_every_system() -> None:
    roll = {"actor_infer.generating_args.stop_strings": ["</answer>"], "actor_train.data_args.template": "chatml"}
    config = config_of("roll", ROLL_GUIDE | roll)
    assert (config.sampling.stop_strings, config.model.chat_template) == (["</answer>"], "chatml")
    assert config_of("roll", ROLL_GUIDE | {"actor_train.data_args.template": "native"}).model.chat_template is None
    assert "Shoal supports only native" in str(
        translate_values("roll", ROLL_GUIDE | {"actor_train.data_args.template": "x"}).blocking[0]
    )
    trl = {"generation_kwargs": {"stop": "</answer>"}}
    assert config_of("trl", trl, "run.num_steps=10").sampling.stop_strings == ["</answer>"]
    refused = translate_values("trl", {"generation_kwargs": {"seed": 1}}, "run.num_steps=10").blocking
    assert "`stop`" in str(refused[0])
    verl = {"actor_rollout_ref.rollout.n": 8, "algorithm.adv_estimator": "grpo"}
    verl |= {"actor_rollout_ref.model.custom_chat_template": "{{ messages }}"}
    assert config_of("verl", verl, "run.num_steps=10").model.chat_template == "{{ messages }}"


def test_a_value_that_cannot_be_converted_is_decided_by_the_field_of_shoal() -> None:
    values = {"loss_fn": "reinforce"}
    (refusal,) = [item for item in translate_values("open-instruct", values).blocking if item.name == "loss_fn"]
    assert refusal.cure == "loss.objective", refusal
    decided = translate_values("open-instruct", values, "loss.objective=gspo")
    assert not [item for item in decided.blocking if item.name == "loss_fn"], decided.blocking
    assert decided.values["loss"]["objective"] == "gspo"
    assert any("reinforce" in note and "loss.objective" in note for note in decided.notes), decided.notes


def test_skip_all_leaves_out_what_a_configuration_can_do_without() -> None:
    settings = Settings({"optim": "sgd", "tools": ["a"]})
    translation = translate(SYSTEMS["trl"], settings, skip=["all"], overrides=["run.num_steps=3"])
    assert {refusal.name for refusal in translation.blocking} == {"model", "train_dataset"}
    assert {refusal.name for refusal in translation.refusals if translation.leaves_out(refusal)} == {"optim", "tools"}


def test_relative_files_of_overrides_begin_at_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_of(
        "trl", {"max_steps": 3}, "reward.custom.mine.file=reward.py", 'environments=[{name="e", source="env.py:E"}]'
    )
    assert config.reward.custom["mine"].file == str(tmp_path / "reward.py")
    assert config.environments[0].source == f"{tmp_path / 'env.py'}:E"


def test_an_override_changes_one_field_of_a_source_or_names_the_first() -> None:
    def sources(system: str, values: dict[str, Any], override: str) -> Any:
        overrides = ["model.path=m", "run.num_steps=3", override]
        return translate(SYSTEMS[system], Settings(values), overrides=overrides).values["data"]["sources"]

    verl = {"actor_rollout_ref.rollout.n": 8, "algorithm.adv_estimator": "grpo", "data.train_files": ["a.parquet"]}
    (source,) = sources("verl", verl, "data.sources.0.path=mine.parquet")
    assert (source["path"], source["messages_column"]) == ("mine.parquet", "prompt"), "the rest is the script's"
    (source,) = sources("trl", {}, "data.sources.0.path=q.jsonl")
    assert source["path"] == "q.jsonl"


def test_other_data_leave_the_evaluation_and_say_so() -> None:
    verl = {"actor_rollout_ref.rollout.n": 8, "algorithm.adv_estimator": "grpo", "data.val_files": ["held-out.parquet"]}
    notes = translate_values("verl", verl, "run.num_steps=3").notes
    assert [note for note in notes if "data.sources leaves evaluation.sources" in note and "held-out.parquet" in note]
    given = translate_values("verl", verl, "run.num_steps=3", 'evaluation.sources=[{path = "a.jsonl"}]').notes
    assert not [note for note in given if "data.sources leaves" in note]


@pytest.mark.parametrize(
    ("system", "values"),
    [
        ("trl", {"top_p": 0.9, "max_steps": 5}),
        ("trl", {"min_p": 0.1, "max_steps": 5}),
        ("unsloth", {"vllm_sampling_params": {"min_p": 0.1, "top_k": -1}, "max_steps": 5}),
        ("verl", {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.top_p": 0.9}),
    ],
)
def test_truncated_sampling_without_top_k_is_bounded_and_says_so(system: str, values: dict[str, object]) -> None:
    result = translate_values(system, values)
    assert result.values["sampling"]["top_k"] == MAX_TOP_K
    (note,) = [note for note in result.notes if "drawn from at most the 1024 likeliest" in note]
    assert ("min_p already excludes them" in note) == ("min_p" in str(values))


_FIELDS = {"verl": "actor_rollout_ref.model.path", "roll": "pretrain", "trl": "model_name_or_path"}


@pytest.mark.parametrize(
    ("model", "features"),
    [
        ("Qwen/Qwen2-VL-7B-Instruct", ["images"]),
        ("Qwen/Qwen2.5-VL-7B-Instruct", []),
        ("Qwen/Qwen3-VL-8B-Instruct", []),
        ("Qwen/Qwen3.5-4B", []),
        ("Qwen/Qwen3.5-35B-A3B", ["mixture-of-experts"]),
        ("google/gemma-3-4b-it", []),
        ("google/gemma-3n-E2B-it", ["images"]),
        ("google/gemma-4-E4B-it", []),
        ("mistralai/Ministral-3-8B-Instruct-2512", []),
        ("zai-org/GLM-4.1V-9B-Thinking", ["images"]),
        ("OpenGVLab/InternVL3_5-2B-HF", ["images"]),
        ("openbmb/MiniCPM-o-2_6", ["images"]),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", ["mixture-of-experts"]),
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", ["images", "mixture-of-experts"]),
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
    result = translate(SYSTEMS["verl"], Settings({_FIELDS["verl"]: "Qwen/Qwen2-VL-7B-Instruct"}), overrides=BASE)
    assert not [refusal for refusal in result.blocking if "images" in refusal.reason]
    assert any("--set model.path" in note for note in result.notes)
