"""Tests of the translation of verl's overrides."""

from pathlib import Path
from typing import Any

import pytest

from shoal.config import parse_config
from shoal.translate import SYSTEMS, translate
from shoal.translate.sources.reading import read_settings
from shoal.translate.sources.settings import Settings
from tests.support.translations import config_of, translate_values

VERL: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.n": 5,
    "trainer.total_training_steps": 10,
}


def test_the_defaults_of_verl_apply() -> None:
    config = config_of("verl", VERL)
    assert config.loss.dual_clip == 3.0, "verl's dual clip is on"
    assert (config.loss.clip_low, config.loss.clip_high, config.loss.aggregation) == (0.2, 0.2, "token-mean")
    assert (config.advantage.std_ddof, config.advantage.std_eps) == (1, 1e-6)
    assert (config.grpo.groups_per_step, config.grpo.num_mini_batches) == (1024, 4)
    assert (config.learner.weight_decay, config.learner.adam_beta2) == (0.01, 0.999)
    assert config.kl.coef == 0.0 and config.grpo.keep_zero_signal


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("algorithm.adv_estimator", "rloo", {"advantage.baseline": "leave_one_out", "advantage.scale": "none"}),
        ("algorithm.adv_estimator", "opo", {"advantage.baseline": "length_weighted"}),
        ("algorithm.adv_estimator", "remax", {"advantage.baseline": "greedy"}),
        ("algorithm.adv_estimator", "reinforce_plus_plus", {"advantage.whiten": True}),
        ("algorithm.norm_adv_by_std_in_grpo", False, {"advantage.scale": "none"}),
        ("algorithm.filter_groups.enable", True, {"grpo.active_sampling": True}),
        ("actor_rollout_ref.actor.clip_ratio", 0.1, {"loss.clip_low": 0.1, "loss.clip_high": 0.1}),
        ("actor_rollout_ref.actor.clip_ratio_high", 0.28, {"loss.clip_low": 0.2, "loss.clip_high": 0.28}),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "gspo", {"loss.aggregation": "seq-mean-token-mean"}),
        ("algorithm.rollout_correction.rollout_is", "token", {"correction.weight_high": 2.0}),
        ("actor_rollout_ref.actor.use_kl_loss", True, {"kl.coef": 0.001, "kl.estimator": "k3", "kl.output_clamp": 10}),
        ("algorithm.use_kl_in_reward", True, {"kl.place": "reward", "kl.estimator": "k1"}),
    ],
)
def test_overrides_of_verl_are_translated(name: str, value: Any, expected: dict[str, Any]) -> None:
    values = translate_values("verl", VERL | {name: value})
    assert values.toml, [str(refusal) for refusal in values.blocking]
    got = {key: values.values[key.split(".")[0]].get(key.split(".")[1]) for key in expected}
    assert got == expected


@pytest.mark.parametrize(
    ("metric", "filter_groups_by"),
    [("acc", "correct"), ("score", "correct"), ("seq_reward", "reward"), (None, "reward")],
)
def test_the_metric_that_verl_filters_groups_by_is_translated(metric: str | None, filter_groups_by: str) -> None:
    filters = {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": metric}
    assert config_of("verl", VERL | filters).grpo.filter_groups_by == filter_groups_by
    (refusal,) = translate_values("verl", VERL | filters | {"algorithm.filter_groups.metric": "pass_rate"}).blocking
    assert refusal.name == "algorithm.filter_groups.metric" and "acc" in refusal.reason


def test_agents_of_verl_are_refused_until_environments_are_declared() -> None:
    turns = {"enable": True, "max_assistant_turns": 4, "format": "qwen3_coder", "max_parallel_calls": 1}
    agents = VERL | {f"actor_rollout_ref.rollout.multi_turn.{name}": value for name, value in turns.items()}
    (refusal,) = translate_values("verl", agents).blocking
    assert refusal.name.endswith("multi_turn.enable") and "docs/environments.md" in refusal.reason
    config = parse_config(translate_values("verl", agents, 'environments=[{name = "python"}]').values)
    assert config.environments[0].name == "python"
    assert (config.episodes.max_turns, config.episodes.tool_parser) == (4, "qwen3_xml")


def test_a_script_of_verl_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "set -x\nM=${M:-org/model}\npython3 -m verl.trainer.main_ppo \\\n  algorithm.adv_estimator=grpo \\\n"
        "  data.train_files=\"['a.parquet','b.parquet']\" data.train_batch_size=64 \\\n"
        "  actor_rollout_ref.model.path=$M actor_rollout_ref.actor.ppo_mini_batch_size=32 \\\n"
        "  +actor_rollout_ref.rollout.n=8 trainer.total_training_steps=20 trainer.logger='[\"console\"]' $@\n"
    )
    translation = translate(SYSTEMS["verl"], read_settings(SYSTEMS["verl"], [str(path)]))
    assert translation.toml, [str(refusal) for refusal in translation.blocking]
    config = parse_config(translation.values)
    assert [source.path for source in config.data.sources] == ["a.parquet", "b.parquet"]
    assert config.data.sources[0].ground_truth_column == "reward_model.ground_truth"
    assert (config.model.path, config.grpo.num_mini_batches, config.run.num_steps) == ("org/model", 2, 20)


def test_an_unknown_override_is_refused_with_similar_names() -> None:
    (refusal,) = translate_values("verl", VERL | {"actor_rollout_ref.rollout.temprature": 1.0}).blocking
    assert "did you mean actor_rollout_ref.rollout.temperature" in refusal.reason


def test_k1_of_verl_bounds_the_inverse_of_the_ratio() -> None:
    rejection = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.8_1.6"}
    values = {f"algorithm.rollout_correction.{name}": value for name, value in rejection.items()}
    (test,) = config_of("verl", VERL | values).correction.filters
    assert (test.statistic, test.level, test.reject) == ("ratio", "sequence_mean", True)
    assert (test.low, test.high) == (pytest.approx(1 / 1.6), pytest.approx(1 / 0.8))


def test_every_rejection_option_of_verl_becomes_a_filter() -> None:
    prefix = "algorithm.rollout_correction"
    several = {f"{prefix}.rollout_rs": "token_k1,seq_max_k2", f"{prefix}.rollout_rs_threshold": "0.6_1.6,2.5"}
    first, second = config_of("verl", VERL | several).correction.filters
    assert (first.statistic, first.level, first.low, first.high) == ("ratio", "token", 1 / 1.6, 1 / 0.6)
    assert (second.statistic, second.level, second.low, second.high) == ("k2", "sequence_max", None, 2.5)
    assert first.reject and second.reject
    one = {f"{prefix}.rollout_rs": "seq_sum_k3,token_k2", f"{prefix}.rollout_rs_threshold": "2.0"}
    assert [test.high for test in config_of("verl", VERL | one).correction.filters] == [2.0, 2.0]
    upper = {f"{prefix}.rollout_rs": "token_k1", f"{prefix}.rollout_rs_threshold": "2.0"}
    (test,) = config_of("verl", VERL | upper).correction.filters
    assert (test.low, test.high) == (0.5, 2.0), "the lower bound is the upper one's inverse"


@pytest.mark.parametrize(
    ("options", "bounds", "message"),
    [
        ("token_k1,seq_max_k2", "1,2,3", "has 2 options and rollout_rs_threshold 3 bounds"),
        ("seq_max_k1", "2.0", "'seq_max_k1' is unknown"),
        ("token_k2", "0.5_2.0", "token_k2 has only an upper bound"),
        ("token_k1", "2.0_0.5", "the lower one below the upper one"),
        ("token_k1", "wide", "'wide' is not a bound"),
        ("token_k1", None, "rollout_rs_threshold must give its bounds"),
    ],
)
def test_a_rejection_that_verl_does_not_accept_is_refused(options: str, bounds: str | None, message: str) -> None:
    prefix = "algorithm.rollout_correction"
    values = {f"{prefix}.rollout_rs": options, f"{prefix}.rollout_rs_threshold": bounds}
    (refusal,) = translate_values("verl", VERL | values).blocking
    assert message in refusal.reason and refusal.name == f"{prefix}.rollout_rs"


@pytest.mark.parametrize("prefix", ["reward_model.reward_kwargs.overlong_buffer_cfg", "reward_model.overlong_buffer"])
def test_the_overlong_buffer_of_dapo_is_a_part_of_the_reward(prefix: str) -> None:
    buffer = {f"{prefix}.enable": True, f"{prefix}.len": 4096, f"{prefix}.penalty_factor": 1.0}
    base = {"actor_rollout_ref.model.path": "m", "data.train_files": ["a.parquet"]}
    base |= {"algorithm.adv_estimator": "grpo", "trainer.total_training_steps": 5, "actor_rollout_ref.rollout.n": 8}
    base |= {"data.max_response_length": 20480}
    overlong = config_of("verl", base | buffer | {"reward_model.reward_manager": "dapo"}).reward.overlong
    assert (overlong.factor, overlong.buffer_tokens, overlong.max_length_tokens) == (1.0, 4096, None)
    assert config_of("verl", base | buffer).reward.overlong.factor == 0, "the naive reward manager has no buffer"


@pytest.mark.parametrize("name", ["image_key", "video_key", "audio_key"])
def test_a_column_of_images_is_refused_as_vision_although_data_are_given(name: str) -> None:
    (refusal,) = translate_values("verl", VERL | {f"data.{name}": f"{name[:5]}s"}).blocking
    assert refusal.name == f"data.{name}" and "images, audio and video" in refusal.reason


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("actor_rollout_ref.rollout.name", "sglang"),
        ("actor_rollout_ref.actor.strategy", "megatron"),
        ("actor_rollout_ref.actor.megatron.expert_model_parallel_size", 8),
        ("actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_offload_fraction", 1),
        ("model_engine", "veomni"),
    ],
)
def test_the_engine_and_how_it_spreads_the_work_are_noted(name: str, value: Any) -> None:
    result = translate_values("verl", VERL | {name: value})
    assert result.toml, [str(refusal) for refusal in result.blocking]
    assert [note for note in result.notes if note.startswith(f"{name} = {value} changes nothing here")], result.notes


def test_an_override_that_is_a_table_is_read_as_its_parts() -> None:
    settings = read_settings(
        SYSTEMS["verl"], ["actor_rollout_ref.actor.optim.override_optimizer_config={foreach: true}"]
    )
    assert settings.values == {"actor_rollout_ref.actor.optim.override_optimizer_config.foreach": True}


def test_epochs_of_verl_are_passes_over_the_prompts() -> None:
    values = {name: value for name, value in VERL.items() if name != "trainer.total_training_steps"}
    assert config_of("verl", values | {"trainer.total_epochs": 15}).run.total_epochs == 15
    assert config_of("verl", values).run.total_epochs == 30, "verl's default"
    both = translate_values("verl", VERL | {"trainer.total_epochs": 15})
    assert (both.values["run"]["num_steps"], both.values["run"].get("total_epochs")) == (10, None)
    assert any(note.startswith("trainer.total_epochs = 15: trainer.total_training_steps") for note in both.notes)


@pytest.mark.parametrize(
    "words",
    [
        ["+data.apply_chat_template_kwargs.enable_thinking=False", "+data.apply_chat_template_kwargs.effort=low"],
        ["data.apply_chat_template_kwargs={enable_thinking: false, effort: low}"],
    ],
)
def test_variables_of_the_chat_template_are_translated(words: list[str]) -> None:
    values = read_settings(SYSTEMS["verl"], words).values
    config = config_of("verl", VERL | values)
    assert config.model.chat_template_kwargs == {"enable_thinking": False, "effort": "low"}


def test_a_reward_function_of_verl_becomes_the_verifier_of_every_row(tmp_path: Path) -> None:
    path = tmp_path / "my_reward.py"
    values = {"custom_reward_function.path": str(path), "custom_reward_function.name": "my_score"}
    values |= {"custom_reward_function.reward_kwargs": {"bonus": 0.5}, "data.train_files": "a.parquet"}
    translation = translate(SYSTEMS["verl"], Settings(VERL | values), overrides=["model.path=m"])
    config = parse_config(translation.values)
    verifier = config.reward.custom["my_score"]
    assert (verifier.file, verifier.function, verifier.convention) == (str(path), "my_score", "verl")
    assert verifier.arguments == {"bonus": 0.5}
    (source,) = config.data.sources
    assert source.verifier == "my_score"
    assert source.label_columns == {
        "data_source": "data_source",
        "ground_truth": "reward_model.ground_truth",
        "extra_info": "extra_info",
    }
    given = translate_values("verl", VERL | values)
    assert [note for note in given.notes if 'verifier = "my_score" and label_columns' in note], given.notes


def test_parts_of_a_reward_function_are_compared_one_by_one_in_gdpo(tmp_path: Path) -> None:
    path = tmp_path / "parts.py"
    path.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info): return {}\n")
    values = {"custom_reward_function.path": str(path), "algorithm.adv_estimator": "gdpo"}
    values |= {"reward.reward_manager.name": "gdpo", "data.train_files": "a.parquet"}
    values |= {"algorithm.gdpo_reward_keys": ["Accuracy", "form"], "algorithm.gdpo_reward_weights": [1.0, 0.5]}
    translation = translate(SYSTEMS["verl"], Settings(VERL | values), overrides=["model.path=m"])
    assert translation.toml, [str(refusal) for refusal in translation.blocking]
    config = parse_config(translation.values)
    keys = {name: table.score_key for name, table in config.reward.custom.items()}
    assert keys == {"accuracy": "Accuracy", "form": "form"}
    assert config.reward.weights == {"accuracy": 1.0, "form": 0.5}
    assert [source.verifier for source in config.data.sources] == [["accuracy", "form"]]
    assert config.advantage.per_verifier and config.advantage.whiten


def test_parts_without_a_function_are_refused_by_name() -> None:
    values = VERL | {"algorithm.adv_estimator": "gdpo", "algorithm.gdpo_reward_keys": ["a"]}
    (refusal,) = translate(SYSTEMS["verl"], Settings(values), overrides=["model.path=m"]).blocking[:1]
    assert refusal.name == "algorithm.gdpo_reward_keys"


def test_held_out_questions_are_sampled_as_the_settings_say_whatever_do_sample_is() -> None:
    prefix = "actor_rollout_ref.rollout.val_kwargs"
    values = {f"{prefix}.temperature": 0.8, f"{prefix}.top_p": 0.7, "data.val_files": "a.parquet"}
    for settings in (values, values | {f"{prefix}.do_sample": False}, values | {f"{prefix}.do_sample": True}):
        evaluation = config_of("verl", VERL | settings).evaluation
        assert (evaluation.temperature, evaluation.top_p) == (0.8, 0.7), settings


def test_a_reward_function_of_a_batch_is_refused() -> None:
    values = {"custom_reward_function.path": "/f.py", "reward_model.reward_manager": "batch"}
    (refusal,) = translate_values("verl", VERL | values).blocking
    assert refusal.name == "custom_reward_function.path" and "batch" in refusal.reason


def test_code_of_a_model_is_trusted_where_the_source_trusts_it() -> None:
    name = "actor_rollout_ref.model.trust_remote_code"
    assert config_of("verl", VERL | {name: True}).model.trust_remote_code
    assert not config_of("verl", VERL).model.trust_remote_code


@pytest.mark.parametrize(
    ("values", "lora"),
    [
        ({"lora_rank": 32, "lora_alpha": 64}, (32, 64, ["all-linear"], 0.0)),
        ({"lora_rank": 8, "target_modules": "[q_proj,v_proj]"}, (8, 16, ["q_proj", "v_proj"], 0.0)),
        ({"lora.rank": 16, "lora.dropout": 0.1}, (16, 32, ["all-linear"], 0.1)),
    ],
)
def test_adapters_of_verl_are_translated(values: dict[str, Any], lora: tuple[Any, ...]) -> None:
    config = config_of("verl", VERL | {f"actor_rollout_ref.model.{name}": value for name, value in values.items()})
    ours = config.learner.lora
    assert (ours.rank, ours.alpha, ours.target_modules, ours.dropout) == lora


def test_some_of_megatrons_layers_are_refused() -> None:
    values = {"actor_rollout_ref.model.lora.rank": 8, "actor_rollout_ref.model.lora.target_modules": ["linear_qkv"]}
    (refusal,) = translate_values("verl", VERL | values).blocking
    assert refusal.name == "actor_rollout_ref.model.lora.target_modules"


def test_truncated_sampling_of_verl_is_translated() -> None:
    values = {"actor_rollout_ref.rollout.top_p": 0.9, "actor_rollout_ref.rollout.top_k": 20}
    sampling = config_of("verl", VERL | values).sampling
    assert (sampling.top_p, sampling.top_k) == (0.9, 20)


def test_data_sets_that_verl_scores_by_name_have_verifiers() -> None:
    remap = config_of("verl", VERL).reward.remap
    assert (remap["openai/gsm8k"], remap["lighteval/math"], remap["math_dapo"]) == ("gsm8k", "math", "math")
    model = {"reward_model.enable": True, "reward_model.model.path": "judge"}
    assert not config_of("verl", VERL | model).reward.remap, "the model scores every row"


def test_logged_answers_of_evaluations_are_shown() -> None:
    values = {"trainer.log_val_generations": 10, "trainer.test_freq": 5, "data.val_files": "v.parquet"}
    tracking = config_of("verl", VERL | values).tracking
    assert (tracking.completions_every_steps, tracking.num_completions) == (5, 10)
    off = translate_values("verl", VERL | values | {"trainer.test_freq": -1})
    assert [note for note in off.notes if note.startswith("trainer.log_val_generations = 10: ")]


def test_the_module_that_a_script_starts_is_a_setting(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("python -m verl.experimental.fully_async_policy.fully_async_main rollout.total_rollout_steps=64\n")
    settings = read_settings(SYSTEMS["verl"], [str(path)])
    assert settings.values["program"] == "verl.experimental.fully_async_policy.fully_async_main"


def test_the_home_folder_is_written_out_in_paths() -> None:
    values = VERL | {"actor_rollout_ref.model.path": "~/model", "data.train_files": "~/a.parquet"}
    translation = translate(SYSTEMS["verl"], Settings(values))
    assert translation.values["model"]["path"] == str(Path.home() / "model")
    assert translation.values["data"]["sources"][0]["path"] == str(Path.home() / "a.parquet")
