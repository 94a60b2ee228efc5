"""Tests of the translation of ROLL's reward workers, their data and their filters."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.translate import SYSTEMS, Translation
from shoal.translate.sources.reading import read_settings
from tests.support.translations import parsed, translate_file

_CLASSES = {
    "math_rule": "math_rule_reward_worker.MathRuleRewardWorker",
    "code_sandbox": "code_sandbox_reward_worker.CodeSandboxRewardWorker",
    "crossthinkqa": "crossthinkqa_rule_reward_worker.CrossThinkQARuleRewardWorker",
    "ifeval": "ifeval_rule_reward_worker.GeneralRuleRewardWorker",
    "gsm8k_math": "gsm8k_math_reward_worker.GSM8KMathRewardWorker",
    "llm_judge": "llm_judge_reward_worker.LLMJudgeRewardWorker",
}


def _worker(domain: str, tags: list[str], **options: Any) -> dict[str, Any]:
    return {"worker_cls": f"roll.pipeline.rlvr.rewards.{_CLASSES[domain]}", "tag_included": tags, **options}


def _file(**changes: Any) -> dict[str, Any]:
    """A small file of ROLL's: two steps of 10 prompts, three domains."""
    values: dict[str, Any] = {
        "pretrain": "org/dense-1b",
        "max_steps": 200,
        "rollout_batch_size": 10,
        "num_return_sequences_in_group": 4,
        "response_length": 64,
        "adv_estimator": "grpo",
        "answers": "org/small",
        "actor_train": {
            "model_args": {"model_name_or_path": "${answers}"},
            "data_args": {
                "file_name": ["a.jsonl", "b.jsonl"],
                "domain_interleave_probs": {"math_rule": 0.5, "ifeval": 0.25, "crossthinkqa": 0.25},
            },
        },
        "rewards": {
            "math_rule": _worker("math_rule", ["DeepMath", "aime"], world_size=8),
            "ifeval": _worker("ifeval", ["ifeval"]),
            "crossthinkqa": _worker("crossthinkqa", ["cross"], reward_type="soft", response_length_penalty_coef=0.0),
        },
    }
    return values | changes


def _translated(tmp_path: Path, values: dict[str, Any], *overrides: str) -> Translation:
    text = yaml.safe_dump(values, sort_keys=False)
    return translate_file("roll", tmp_path / "roll.yaml", text, overrides=overrides)


def _refused(translation: Translation) -> list[str]:
    return [refusal.name for refusal in translation.blocking]


def test_each_domain_becomes_a_source_with_its_share_of_the_prompts_of_the_run(tmp_path: Path) -> None:
    translation = _translated(tmp_path, _file())
    config = parsed(translation)
    shares = [(source.labels, source.count) for source in config.data.sources]
    # Of 10 prompts ROLL takes int(2.5) for the middle domain, and the rest for the last one.
    assert shares == [(["DeepMath", "aime"], 1000), (["ifeval"], 400), (["cross"], 600)]
    assert all(source.path == ["a.jsonl", "b.jsonl"] for source in config.data.sources)
    assert {source.verifier_column for source in config.data.sources} == {"tag"}


def test_tags_choose_verifiers_and_classes_their_options(tmp_path: Path) -> None:
    reward = parsed(_translated(tmp_path, _file())).reward
    assert reward.remap == {"deepmath": "math", "aime": "math", "ifeval": "ifeval_old", "cross": "multiple_choice"}
    assert reward.verifiers.multiple_choice.values == "soft"
    assert (reward.repetition.max_penalty, reward.repetition.ngram_size) == (-0.5, 3)
    assert reward.repetition.unit == "words"
    assert reward.repetition.verifiers == ["ifeval_old", "multiple_choice"]


def test_domains_are_compared_and_whitened_apart(tmp_path: Path) -> None:
    whitened = _file(whiten_advantages=True)
    assert parsed(_translated(tmp_path, whitened)).advantage.batch_per_verifier
    single = whitened | {"rewards": {"math_rule": _worker("math_rule", ["DeepMath"])}}
    single["actor_train"]["data_args"]["domain_interleave_probs"] = {"math_rule": 1}
    assert not parsed(_translated(tmp_path, single)).advantage.batch_per_verifier


def test_questions_of_the_validation_whose_tag_no_worker_lists_are_scored_by_math_rule(tmp_path: Path) -> None:
    values = _file(validation={"data_args": {"file_name": ["v.jsonl"]}}, skip_initial_validation=True)
    config = parsed(_translated(tmp_path, values))
    assert config.reward.remap["*"] == "math"
    assert (config.evaluation.held_out, config.evaluation.on_start) == (False, False)
    assert "*" not in parsed(_translated(tmp_path, _file())).reward.remap
    other = values | {"rewards": {"ifeval": _worker("ifeval", ["ifeval"])}}
    other["actor_train"]["data_args"]["domain_interleave_probs"] = {"ifeval": 1.0}
    assert "*" not in parsed(_translated(tmp_path, other)).reward.remap


def test_files_are_read_where_file_name_says(tmp_path: Path) -> None:
    values = _file(rewards={"math": _worker("gsm8k_math", ["openai/gsm8k"])})
    values["actor_train"]["data_args"] = {
        "file_name": ["train.parquet"],
        "dataset_dir": "/data",
        "domain_interleave_probs": {"math": 1.0},
    }
    source = _translated(tmp_path, values).values["data"]["sources"][0]
    assert source == {"path": "train.parquet", "verifier_column": "tag", "labels": ["openai/gsm8k"]}


def test_data_that_are_given_keep_the_verifiers_of_the_tags(tmp_path: Path) -> None:
    config = parsed(_translated(tmp_path, _file(), 'data.sources=[{path = "d.jsonl"}]'))
    assert [source.path for source in config.data.sources] == ["d.jsonl"]
    assert config.reward.remap["aime"] == "math"


@pytest.mark.parametrize(
    ("domain", "source"),
    [
        ("math_rule", {"verifier": "math"}),
        ("code_sandbox", {"ground_truth_column": "test_cases", "labels": ["T"]}),
        ("ifeval", {"labels": ["T"]}),
    ],
)
def test_the_rows_of_a_single_domain_are_chosen_as_roll_chooses_them(
    tmp_path: Path, domain: str, source: dict[str, Any]
) -> None:
    values = _file(rewards={domain: _worker(domain, ["T"])})
    values["actor_train"]["data_args"] = {"file_name": ["a.jsonl"], "domain_interleave_probs": {domain: 1.0}}
    table = _translated(tmp_path, values).values["data"]["sources"][0]
    assert table == {"path": "a.jsonl", "verifier_column": "tag"} | source


def test_a_judge_that_roll_runs_itself_is_named_and_needs_an_address(tmp_path: Path) -> None:
    judge = _worker(
        "llm_judge",
        ["RLVR"],
        judge_prompt="some-prompt",
        judge_model_type="inference",
        model_args={"model_name_or_path": "org/judge-7b"},
        generating_args={"temperature": 0.8, "top_k": 50},
    )
    values = _file(rewards=_file()["rewards"] | {"llm_judge": judge})
    translation = _translated(tmp_path, values)
    settings = dict(translation.values["reward"]["judge"])
    assert "{reference}" in settings.pop("template")
    assert settings == {"model": "org/judge-7b", "temperature": 0.8, "min_score": 0, "max_score": 1}
    notes = "\n".join(translation.notes)
    assert "reward.judge.base_url" in notes
    assert "some-prompt" in notes
    assert "generating_args: top_k" in notes


def test_the_key_of_a_judge_appears_nowhere(tmp_path: Path) -> None:
    judge = _worker(
        "llm_judge",
        ["RLVR"],
        judge_model_type="api",
        judge_model_name="gpt",
        judge_api_url="https://judge.example/v1",
        judge_api_key="sk-verysecret",
    )
    values = _file(
        rewards={"llm_judge": judge}, tracker_kwargs={"api_key": "wandb-secret", "project": "p"}, track_with="wandb"
    )
    translation = _translated(tmp_path, values, 'data.sources=[{path = "d.jsonl"}]')
    config = parsed(translation)
    assert config.reward.judge.base_url == "https://judge.example/v1"
    assert config.tracking.wandb_project == "p"
    text = translation.toml + "\n".join((*translation.notes, *map(str, translation.refusals)))
    assert "secret" not in text


def test_a_worker_of_ones_own_and_one_for_images_are_refused(tmp_path: Path) -> None:
    own = {"worker_cls": "my.rewards.OwnWorker", "tag_included": ["own"]}
    images = {"worker_cls": "roll.rewards.detection_reward_worker.DetectionRewardWorker", "tag_included": ["v"]}
    translation = _translated(
        tmp_path, _file(rewards={"own": own, "images": images}), 'data.sources=[{path = "d.jsonl"}]'
    )
    assert _refused(translation) == ["rewards.own.worker_cls", "rewards.images.worker_cls"]
    assert "images, audio and video" in translation.blocking[1].reason


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((None, None), {"keep_zero_signal": True}),
        (("std", "std"), {"active_sampling": True}),
        (("mean", "mean"), {"active_sampling": True, "difficulty_low": 0.2, "difficulty_high": 0.9}),
    ],
)
def test_a_filter_that_all_domains_share_drops_and_replaces_groups(
    tmp_path: Path, kinds: tuple[str | None, ...], expected: dict[str, Any]
) -> None:
    values = _file(rewards=_filtered(kinds), is_use_additional_prompts=True)
    values |= {"difficulty_mask": kinds[0] == "mean", "difficulty_low_threshold": 0.2, "difficulty_high_threshold": 1.0}
    values["actor_train"]["data_args"]["domain_interleave_probs"] = {"math_rule": 0.5, "code_sandbox": 0.5}
    grpo = _translated(tmp_path, values).values["grpo"]
    assert {name: grpo[name] for name in expected} == expected


def test_filters_that_differ_between_domains_are_refused(tmp_path: Path) -> None:
    translation = _translated(tmp_path, _file(rewards=_filtered(("mean", "std"))), 'data.sources=[{path = "d.jsonl"}]')
    assert _refused(translation) == ["rewards.math_rule.query_filter_config"]


def _filtered(kinds: tuple[str | None, ...]) -> dict[str, Any]:
    filters = {
        "mean": {"type": "mean_filter", "filter_args": {"threshold_up": 0.9, "threshold_down": 0.1}},
        "std": {"type": "std_filter", "filter_args": {"std_threshold": 0}},
    }
    return {
        domain: _worker(domain, [domain]) | ({"query_filter_config": filters[kind]} if kind else {})
        for domain, kind in zip(("math_rule", "code_sandbox"), kinds, strict=True)
    }


def test_additional_prompts_without_a_filter_drop_no_group(tmp_path: Path) -> None:
    translation = _translated(tmp_path, _file(is_use_additional_prompts=True))
    assert translation.values["grpo"]["active_sampling"] is False
    assert any("is_use_additional_prompts" in note for note in translation.notes)


_ACCEPTED = {"actor_infer.generating_args.num_beams"}
"""Fields whose only accepted value is what happens anyway; they leave no trace."""


def test_every_setting_of_a_file_leaves_a_trace_in_the_configuration_or_in_the_notes(tmp_path: Path) -> None:
    values = _file(
        hydra={"run": {"dir": "."}},
        logging_dir="./logs",
        eval_steps=5,
        save_steps=20,
        max_ckpt_to_keep=3,
        track_with="wandb",
        tracker_kwargs={"project": "p", "notes": "n"},
        reward_clip=10,
        whiten_advantages=True,
        dual_clip_loss=True,
        add_token_level_kl=False,
        error_max_len_clip=False,
        difficulty_mask=True,
        difficulty_low_threshold=0.1,
        value_clip=0.5,
        async_generation_ratio=1,
        enable_reference=True,
        validation={"data_args": {"file_name": ["v.jsonl"]}, "generating_args": {"temperature": 0.6, "top_k": 20}},
        reference={"strategy_args": {"strategy_name": "megatron_infer"}},
        actor_infer={
            "generating_args": {"temperature": 0.9, "top_p": 1.0, "top_k": -1, "num_beams": 1, "max_new_tokens": 64},
            "strategy_args": {"strategy_name": "sglang", "strategy_config": {"max_model_len": 512, "block_size": 16}},
            "device_mapping": "list(range(4,8))",
        },
    )
    values["actor_train"] |= {
        "worker_cls": "roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker",
        "pg_variant": "cispo",
        "training_args": {
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 10,
            "warmup_steps": 4,
            "num_train_epochs": 50,
        },
        "strategy_args": {
            "strategy_name": "megatron_train",
            "strategy_config": {"tensor_model_parallel_size": 2, "use_distributed_optimizer": True},
        },
        "device_mapping": "list(range(0,4))",
        "infer_batch_size": 4,
    }
    values["actor_train"]["data_args"] |= {"template": "qwen3", "messages": "chat", "interleave_probs": "1.0"}
    values["actor_train"]["model_args"] |= {"dtype": "bf16", "attn_implementation": "fa2"}
    translation = _translated(tmp_path, values)
    assert translation.toml, [str(refusal) for refusal in translation.blocking]
    comments = " ".join(line.removeprefix("# ") for line in translation.toml.splitlines())
    text = f"{comments} {' '.join(translation.notes)}"
    settings = read_settings(SYSTEMS["roll"], [str(tmp_path / "roll.yaml")]).values
    silent = [name for name in settings if name not in text and name not in _ACCEPTED]
    assert silent == []
    assert len(settings) > 50
