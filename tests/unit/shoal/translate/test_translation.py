"""Tests of settings that several systems share."""

from pathlib import Path
from typing import Any

import pytest

from shoal.translate import SYSTEMS, translate
from shoal.translate.sources.settings import Settings
from tests.support.translations import ROLL_GUIDE, config_of, translate_values


def test_stop_strings_and_chat_templates_are_translated_for_every_system() -> None:
    roll = {"actor_infer.generating_args.stop_strings": ["</answer>"], "actor_train.data_args.template": "chatml"}
    config = config_of("roll", ROLL_GUIDE | roll)
    assert (config.sampling.stop_strings, config.model.chat_template) == (["</answer>"], "chatml")
    assert config_of("roll", ROLL_GUIDE | {"actor_train.data_args.template": "native"}).model.chat_template is None
    assert "known: native" in str(
        translate_values("roll", ROLL_GUIDE | {"actor_train.data_args.template": "x"}).blocking[0]
    )
    trl = {"generation_kwargs": {"stop": "</answer>"}}
    assert config_of("trl", trl, "run.num_steps=10").sampling.stop_strings == ["</answer>"]
    refused = translate_values("trl", {"generation_kwargs": {"seed": 1}}, "run.num_steps=10").blocking
    assert "`stop`" in str(refused[0])
    verl = {"actor_rollout_ref.rollout.n": 8, "algorithm.adv_estimator": "grpo"}
    verl |= {"actor_rollout_ref.model.custom_chat_template": "{{ messages }}"}
    assert config_of("verl", verl, "run.num_steps=10").model.chat_template == "{{ messages }}"


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
