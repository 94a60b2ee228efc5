"""Tests of the translation of verl's overrides, also of what changes the numbers among settings that do not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.translate import SYSTEMS, translate, translate_arguments
from shoal.translate.shared.draft import Refusal
from shoal.translate.sources.reading import read_settings
from shoal.translate.sources.settings import Settings
from tests.support.translations import BASE, config_of, parsed, translate_file, translate_values, values_at

VERL: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.n": 5,
    "trainer.total_training_steps": 10,
}


ALGORITHM, REF = "algorithm.", "actor_rollout_ref."
CORRECTION, FILTER = f"{ALGORITHM}rollout_correction.", f"{ALGORITHM}filter_groups."
ACTOR, ROLLOUT, MODEL, LORA = f"{REF}actor.", f"{REF}rollout.", f"{REF}model.", "learner.lora."
VLLM, SCHEDULE = f"{ROLLOUT}engine_kwargs.vllm.", f"{ACTOR}optim."
HELD_OUT = {f"{ROLLOUT}val_kwargs.temperature": 0.8, f"{ROLLOUT}val_kwargs.top_p": 0.7, "data.val_files": "a.parquet"}
FULLY_ASYNC = {
    "program": "verl.experimental.fully_async_policy.fully_async_main", "data.train_batch_size": 0, f"{ROLLOUT}n": 8,
    f"{ACTOR}ppo_mini_batch_size": 32, "rollout.total_rollout_steps": 204800, "async_training.require_batches": 4,
    "async_training.trigger_parameter_sync_step": 4, "async_training.staleness_threshold": 0.5, "rollout.nnodes": 2,
    "rollout.n_gpus_per_node": 8,
}  # fmt: skip
ONE_STEP_OFF = {"program": "verl.experimental.one_step_off_policy.main_ppo"}
SEPARATE = {"trainer.v1.trainer_mode": "separate_async", "trainer.v1.separate_async.parameter_sync_step": 4}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # The defaults of verl, whose dual clip is on.
        ({}, {"loss.dual_clip": 3.0, "loss.clip_low": 0.2, "loss.clip_high": 0.2, "loss.aggregation": "token-mean"}),
        ({}, {"advantage.std_ddof": 1, "advantage.std_eps": 1e-6, "kl.coef": 0.0, "grpo.keep_zero_signal": True}),
        ({}, {"grpo.groups_per_step": 1024, "grpo.num_mini_batches": 4, "loss.baseline": "proximal"}),
        ({}, {"learner.weight_decay": 0.01, "learner.adam_beta2": 0.999, "model.trust_remote_code": False}),
        ({f"{ALGORITHM}adv_estimator": "rloo"}, {"advantage.baseline": "leave_one_out", "advantage.scale": "none"}),
        ({f"{ALGORITHM}adv_estimator": "opo"}, {"advantage.baseline": "length_weighted"}),
        ({f"{ALGORITHM}adv_estimator": "remax"}, {"advantage.baseline": "greedy"}),
        ({f"{ALGORITHM}adv_estimator": "reinforce_plus_plus"}, {"advantage.whiten": True}),
        ({f"{ALGORITHM}norm_adv_by_std_in_grpo": False}, {"advantage.scale": "none"}),
        ({f"{FILTER}enable": True}, {"grpo.active_sampling": True}),
        ({f"{FILTER}enable": True, f"{FILTER}metric": "acc"}, {"grpo.filter_groups_by": "correct"}),
        ({f"{FILTER}enable": True, f"{FILTER}metric": "score"}, {"grpo.filter_groups_by": "correct"}),
        ({f"{FILTER}enable": True, f"{FILTER}metric": "seq_reward"}, {"grpo.filter_groups_by": "reward"}),
        ({f"{FILTER}enable": True, f"{FILTER}metric": None}, {"grpo.filter_groups_by": "reward"}),
        ({f"{ACTOR}clip_ratio": 0.1}, {"loss.clip_low": 0.1, "loss.clip_high": 0.1}),
        ({f"{ACTOR}clip_ratio_high": 0.28}, {"loss.clip_low": 0.2, "loss.clip_high": 0.28}),
        (
            {f"{ACTOR}policy_loss.loss_mode": "gspo", f"{ACTOR}loss_agg_mode": "token-mean"},
            {"loss.aggregation": "seq-mean-token-mean"},
        ),
        (
            {f"{ACTOR}policy_loss.loss_mode": "cispo", f"{ACTOR}clip_ratio_low": 10, f"{ACTOR}clip_ratio_high": 0.2},
            {"loss.objective": "cispo", "loss.cispo_lower": True, "loss.clip_low": 1.0},
        ),
        (
            {f"{ACTOR}policy_loss.loss_mode": "dppo_tv", f"{ACTOR}clip_ratio_low": 0.1, f"{ACTOR}clip_ratio_c": 5},
            {"loss.dppo_divergence_low": 0.1, "loss.dppo_divergence_high": 0.2, "loss.dppo_ratio_cap": 5},
        ),
        (
            {f"{ACTOR}policy_loss.loss_mode": "sapo", f"{ACTOR}tau_neg": 1.2},
            {"loss.sapo_tau_positive": 1.0, "loss.sapo_tau_negative": 1.2},
        ),
        ({f"{CORRECTION}rollout_is": "token"}, {"correction.weight_high": 2.0}),
        ({f"{CORRECTION}rollout_is": None, f"{CORRECTION}rollout_is_threshold": None}, {"correction.weight": "none"}),
        ({f"{ACTOR}use_kl_loss": True}, {"kl.coef": 0.001, "kl.estimator": "k3", "kl.output_clamp": 10}),
        ({f"{ALGORITHM}use_kl_in_reward": True}, {"kl.place": "reward", "kl.estimator": "k1"}),
        # Held-out questions are sampled as the settings say, whatever do_sample is.
        *(
            (HELD_OUT | more, {"evaluation.temperature": 0.8, "evaluation.top_p": 0.7})
            for more in ({}, {f"{ROLLOUT}val_kwargs.do_sample": False}, {f"{ROLLOUT}val_kwargs.do_sample": True})
        ),
        ({f"{ROLLOUT}top_p": 0.9, f"{ROLLOUT}top_k": 20}, {"sampling.top_p": 0.9, "sampling.top_k": 20}),
        ({f"{MODEL}trust_remote_code": True}, {"model.trust_remote_code": True}),
        (
            {f"{MODEL}lora_rank": 32, f"{MODEL}lora_alpha": 64},
            {f"{LORA}rank": 32, f"{LORA}alpha": 64, f"{LORA}target_modules": ["all-linear"]},
        ),
        (
            {f"{MODEL}lora_rank": 8, f"{MODEL}target_modules": "[q_proj,v_proj]"},
            {f"{LORA}alpha": 16, f"{LORA}target_modules": ["q_proj", "v_proj"], f"{LORA}dropout": 0},
        ),
        ({f"{MODEL}lora.rank": 16, f"{MODEL}lora.dropout": 0.1}, {f"{LORA}alpha": 32, f"{LORA}dropout": 0.1}),
        (
            {f"{MODEL}override_config.attn_implementation": "sdpa", f"{ACTOR}fsdp_config.dtype": "float32"},
            {"learner.attention": "sdpa", "learner.compute_dtype": "float32"},
        ),
        # A row is packed over the ranks that share it.
        (
            {
                f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ppo_max_token_len_per_gpu": 8192,
                f"{ACTOR}fsdp_config.ulysses_sequence_parallel_size": 4,
            },
            {"learner.sequence_parallel_size": 4, "learner.pack_tokens": 32768},
        ),
        # The schedule counts the 4 mini-batches of a step, and advances with each in a separate trainer.
        ({f"{SCHEDULE}lr_warmup_steps": 10}, {"learner.warmup_steps": 40}),
        ({f"{SCHEDULE}lr_warmup_steps": 10, f"{ACTOR}ppo_epochs": 2}, {"learner.warmup_steps": 80}),
        ({f"{SCHEDULE}lr_warmup_steps": 10} | SEPARATE, {"learner.warmup_steps": 10}),
        ({"model_engine": "veomni"}, {"learner.lr_scheduler": "cosine"}),
        ({"model_engine": "veomni", f"{SCHEDULE}lr_scheduler_type": "constant"}, {"learner.lr_scheduler": "constant"}),
        # The defaults of one-step-off set bypass_mode.
        (ONE_STEP_OFF, {"grpo.max_staleness": 1, "weights.inflight_updates": False, "loss.baseline": "behavior"}),
        (ONE_STEP_OFF | {f"{CORRECTION}bypass_mode": False}, {"loss.baseline": "proximal"}),
        # A step of fully-async is what it trains on between two publishes.
        (FULLY_ASYNC, {"grpo.groups_per_step": 512, "grpo.num_mini_batches": 16, "run.num_steps": 400}),
        (FULLY_ASYNC, {"grpo.max_staleness": 1, "launch.num_generators": 8, "loss.baseline": "behavior"}),
    ],
)  # fmt: skip
def test_settings_become_fields(values: dict[str, Any], expected: dict[str, Any]) -> None:
    begin = VERL if "data.train_batch_size" not in values else {f"{ALGORITHM}adv_estimator": "grpo"}
    assert values_at(config_of("verl", begin | values), expected) == expected


@pytest.mark.parametrize(
    ("values", "name", "reason"),
    [
        ({f"{FILTER}enable": True, f"{FILTER}metric": "pass_rate"}, f"{FILTER}metric", "acc"),
        ({f"{ROLLOUT}temprature": 1.0}, f"{ROLLOUT}temprature", f"{ROLLOUT}temperature"),
        ({"data.image_key": "images"}, "data.image_key", "images, audio and video"),
        ({"data.video_key": "videos"}, "data.video_key", "images, audio and video"),
        ({"data.audio_key": "audios"}, "data.audio_key", "images, audio and video"),
        (
            {"custom_reward_function.path": "/f.py", "reward_model.reward_manager": "batch"},
            "custom_reward_function.path", "batch",
        ),
        ({f"{MODEL}lora.rank": 8, f"{MODEL}lora.target_modules": ["linear_qkv"]}, f"{MODEL}lora.target_modules", ""),
        ({f"{MODEL}lora_rank": 8, f"{MODEL}exclude_modules": "DONT_EXCLUDE"}, f"{MODEL}exclude_modules", ""),
        ({"trainer.critic_warmup": 20}, "trainer.critic_warmup", ""),
        *(
            ({f"{CORRECTION}{kind}": level, f"{CORRECTION}{kind}_threshold": wrong}, f"{CORRECTION}{field}", "")
            for kind, level, field in (
                ("rollout_is", "token", "rollout_is_threshold"), ("rollout_rs", "token_k1", "rollout_rs"),
            )
            for wrong in ("much", "0", "2_", "-1")
        ),
        # What changes the numbers.
        ({f"{VLLM}kv_cache_dtype": "fp8"}, f"{VLLM}kv_cache_dtype", "quantized"),
        (
            {f"{VLLM}hf_overrides": {"rope_scaling": {}}},
            f"{VLLM}hf_overrides", "as its files define it",
        ),
        ({f"{ROLLOUT}agent.default_agent_loop": "tool_agent"}, f"{ROLLOUT}agent.default_agent_loop", "are code"),
        ({f"{ACTOR}fsdp_config.qat.enable": True}, f"{ACTOR}fsdp_config.qat.enable", "quantization-aware"),
        ({f"{REF}ref.model.path": "another"}, f"{REF}ref.model.path", "training begins with"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_by_name(values: dict[str, Any], name: str, reason: str) -> None:
    (refusal,) = translate_values("verl", VERL | values).blocking
    assert refusal.name == name and reason in refusal.reason, refusal


@pytest.mark.parametrize("values", [{"trainer.critic_warmup": 1}, {f"{MODEL}exclude_modules": "DONT_EXCLUDE"}])
def test_what_changes_nothing_here_is_accepted(values: dict[str, Any]) -> None:
    assert translate_values("verl", VERL | values).toml


def test_parts_without_a_function_are_refused_by_name() -> None:
    values = VERL | {f"{ALGORITHM}adv_estimator": "gdpo", f"{ALGORITHM}gdpo_reward_keys": ["a"]}
    (refusal,) = translate(SYSTEMS["verl"], Settings(values), overrides=["model.path=m"]).blocking[:1]
    assert refusal.name == f"{ALGORITHM}gdpo_reward_keys"


def test_agents_of_verl_are_refused_until_environments_are_declared() -> None:
    turns = {"enable": True, "max_assistant_turns": 4, "format": "qwen3_coder", "max_parallel_calls": 1}
    agents = VERL | {f"actor_rollout_ref.rollout.multi_turn.{name}": value for name, value in turns.items()}
    (refusal,) = translate_values("verl", agents).blocking
    assert refusal.name.endswith("multi_turn.enable") and "docs/environments.md" in refusal.reason
    config = parsed(translate_values("verl", agents, 'environments=[{name = "python"}]'))
    assert config.environments[0].name == "python"
    assert (config.episodes.max_turns, config.episodes.tool_parser) == (4, "qwen3_xml")


def test_a_script_of_verl_is_read(tmp_path: Path) -> None:
    script = (
        "set -x\nM=${M:-org/model}\npython3 -m verl.trainer.main_ppo \\\n  algorithm.adv_estimator=grpo \\\n"
        "  data.train_files=\"['a.parquet','b.parquet']\" data.train_batch_size=64 \\\n"
        "  actor_rollout_ref.model.path=$M actor_rollout_ref.actor.ppo_mini_batch_size=32 \\\n"
        "  +actor_rollout_ref.rollout.n=8 trainer.total_training_steps=20 trainer.logger='[\"console\"]' $@\n"
    )
    config = parsed(translate_file("verl", tmp_path / "run.sh", script))
    assert [source.path for source in config.data.sources] == ["a.parquet", "b.parquet"]
    assert config.data.sources[0].ground_truth_column == "reward_model.ground_truth"
    assert (config.model.path, config.grpo.num_mini_batches, config.run.num_steps) == ("org/model", 2, 20)


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
        ("token_k1", None, "needs bounds: set rollout_rs_threshold"),
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


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({f"{ACTOR}policy_loss.loss_mode": "gspo", f"{ACTOR}loss_agg_mode": "token-mean"}, "gspo always uses seq-mean"),
        ({f"{ACTOR}loss_scale_factor": 1024}, "only seq-mean-token-sum-norm"),
        ({f"{ACTOR}clip_ratio": 0.1}, "if they are unset"),
    ],
)
def test_a_setting_that_verl_ignores_is_noted(values: dict[str, Any], said: str) -> None:
    assert any(said in note for note in translate_values("verl", VERL | values).notes)


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
    config = parsed(translate(SYSTEMS["verl"], Settings(VERL | values), overrides=["model.path=m"]))
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
    config = parsed(translation)
    keys = {name: table.score_key for name, table in config.reward.custom.items()}
    assert keys == {"accuracy": "Accuracy", "form": "form"}
    assert config.reward.weights == {"accuracy": 1.0, "form": 0.5}
    assert [source.verifier for source in config.data.sources] == [["accuracy", "form"]]
    assert config.advantage.per_verifier and config.advantage.whiten


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


@pytest.mark.parametrize("override", ["~actor_rollout_ref.actor", "actor_rollout_ref.actor.clip_ratio=$UNSET"])
def test_an_override_that_takes_a_value_away_drops_the_value_of_the_file_before_it(
    tmp_path: Path, override: str
) -> None:
    values = "actor_rollout_ref: {actor: {clip_ratio: 0.1}, rollout: {n: 5}}\n"
    (tmp_path / "run.yaml").write_text(values)
    script = tmp_path / "run.sh"
    script.write_text(f"python -m verl.trainer.main_ppo run.yaml {override}\n")
    settings = read_settings(SYSTEMS["verl"], [str(script)])
    assert "actor_rollout_ref.actor.clip_ratio" not in settings.values, settings.values
    assert settings.values["actor_rollout_ref.rollout.n"] == 5
    assert override.lstrip("~").partition("=")[0] in settings.unset, settings.unset


TABLE = "custom_reward_function.reward_kwargs"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (f"~{TABLE}.bonus", {"scale": {"low": 1, "high": 2}}),
        (f"~{TABLE}.scale.low", {"bonus": 0.5, "scale": {"high": 2}}),
        (f"~{TABLE}.none.such", {"bonus": 0.5, "scale": {"low": 1, "high": 2}}),
        (f"{TABLE}.scale.low=3", {"bonus": 0.5, "scale": {"low": 3, "high": 2}}),
        (f"+{TABLE}.new.part=3", {"bonus": 0.5, "scale": {"low": 1, "high": 2}, "new": {"part": 3}}),
    ],
)
def test_an_override_reaches_a_key_inside_a_table_of_the_file_that_is_kept_as_a_whole(
    tmp_path: Path, override: str, expected: dict[str, Any]
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("custom_reward_function: {reward_kwargs: {bonus: 0.5, scale: {low: 1, high: 2}}}\n")
    settings = read_settings(SYSTEMS["verl"], [str(path), override])
    assert settings.values[TABLE] == expected and not settings.unset, settings


def test_a_key_without_a_value_makes_the_table_around_it_unknown(tmp_path: Path) -> None:
    path, script = tmp_path / "run.yaml", tmp_path / "run.sh"
    path.write_text("data: {apply_chat_template_kwargs: {enable_thinking: true}}\n")
    script.write_text(
        "python -m verl.trainer.main_ppo run.yaml data.apply_chat_template_kwargs.enable_thinking=$UNSET "
        "data.apply_chat_template_kwargs.budget=3\n"
    )
    answer = "model.chat_template_kwargs={enable_thinking = false}"
    (refusal,) = [item for item in _translated(script) if item.name == "data.apply_chat_template_kwargs"]
    assert (
        all(word in refusal.reason for word in ("enable_thinking", "$UNSET"))
        and refusal.cure == answer.partition("=")[0]
    )
    path.write_text("data: {apply_chat_template_kwargs: {budget: '${nowhere}'}}\n")
    (refusal,) = [item for item in _translated(path) if item.name == "data.apply_chat_template_kwargs"]
    assert "${nowhere}" in refusal.reason, refusal
    assert not [item for item in _translated(path, answer) if item.name == "data.apply_chat_template_kwargs"]


def _translated(path: Path, *overrides: str) -> Sequence[Refusal]:
    return translate_arguments("verl", [str(path)], overrides=[*BASE, *overrides]).blocking


def test_the_home_folder_is_written_out_in_paths() -> None:
    values = VERL | {"actor_rollout_ref.model.path": "~/model", "data.train_files": "~/a.parquet"}
    translation = translate(SYSTEMS["verl"], Settings(values))
    assert translation.values["model"]["path"] == str(Path.home() / "model")
    assert translation.values["data"]["sources"][0]["path"] == str(Path.home() / "a.parquet")


KL = VERL | {"actor_rollout_ref.actor.use_kl_loss": True}


def test_a_reference_that_follows_the_policy_is_translated() -> None:
    reference = {"sync_ref_model": True, "ref_model_sync_steps": 128, "ref_model_mixup_alpha": 0.9}
    values = {f"actor_rollout_ref.ref.{name}": value for name, value in reference.items()}
    kl = config_of("verl", KL | values).kl
    assert (kl.reference_update_steps, kl.reference_alpha) == (128, 0.9)
    assert config_of("verl", KL).kl.reference_update_steps is None
    assert [note for note in translate_values("verl", VERL | values).notes if note.endswith("no KL is computed")]


@pytest.mark.parametrize(
    ("mode", "warmup", "versions", "staleness"),
    [
        ("sync", 1, 8, 0),
        ("colocate_async", 1, 8, 1),
        ("separate_async", 1.5, 8, 2),
        ("separate_async", 4, 3, 2),
        ("colocate_async", 0, 8, 0),
    ],
)
def test_a_trainer_that_samples_beside_training_has_staleness(
    mode: str, warmup: float, versions: int, staleness: int
) -> None:
    values = {"trainer.v1.trainer_mode": mode, "trainer.v1.sampler.max_off_policy_threshold": versions}
    values |= {f"trainer.v1.{mode}.num_warmup_batches": warmup} if mode != "sync" else {}
    assert config_of("verl", VERL | values).grpo.max_staleness == staleness, "a step's own weights are one version"


def test_weights_that_verl_only_measures_are_noted() -> None:
    field = "algorithm.rollout_correction"
    values = VERL | {f"{field}.bypass_mode": True, f"{field}.rollout_is": "token"}
    result = translate_values("verl", values)
    assert result.toml, [str(refusal) for refusal in result.blocking]
    assert "correction" not in result.values and result.values["loss"]["baseline"] == "behavior"
    assert [note for note in result.notes if note.startswith(f"{field}.rollout_is = token: ")]
    (refusal,) = translate_values("verl", values | {f"{field}.rollout_rs": "token_k2"}).blocking
    assert refusal.name == f"{field}.rollout_rs" and "needs bypass_mode=false" in refusal.reason


@pytest.mark.parametrize("mode", ["gspo", "sapo", "geo_mean"])
def test_losses_of_sequences_are_averaged_over_sequences(mode: str) -> None:
    values = VERL | {"actor_rollout_ref.actor.policy_loss.loss_mode": mode}
    assert config_of("verl", values).loss.aggregation == "seq-mean-token-mean", "verl's default is token-mean"
    asked = {"actor_rollout_ref.actor.loss_agg_mode": "token-mean", "actor_rollout_ref.actor.use_kl_loss": True}
    notes = translate_values("verl", values | asked).notes
    assert [note for note in notes if note.endswith(f"verl's {mode} always uses seq-mean-token-mean")]
    assert [note for note in notes if "KL and entropy" in note]


@pytest.mark.parametrize("mode", ["gspo", "sapo", "geo_mean", "gpg"])
def test_clipping_that_a_loss_does_not_have_is_noted(mode: str) -> None:
    values = {"policy_loss.loss_mode": mode, "clip_ratio_c": 10.0, "clip_ratio_low": 0.1, "clip_ratio_high": 0.1}
    result = translate_values("verl", VERL | {f"actor_rollout_ref.actor.{name}": item for name, item in values.items()})
    assert result.toml, [str(refusal) for refusal in result.blocking]
    assert f"actor_rollout_ref.actor.clip_ratio_c = 10: loss_mode {mode} has no dual clip" in result.notes


def test_parameters_are_offloaded_only_with_the_optimizer() -> None:
    field = "actor_rollout_ref.actor.fsdp_config"
    alone = translate_values("verl", VERL | {f"{field}.param_offload": True})
    assert alone.toml and "offload_parameters" not in alone.values["learner"]
    assert [note for note in alone.notes if note.startswith(f"{field}.param_offload = true: learner.offload")]
    both = VERL | {f"{field}.param_offload": True, f"{field}.optimizer_offload": True}
    assert config_of("verl", both).learner.offload_parameters


def test_a_class_of_the_data_is_settled_by_other_data_with_a_note() -> None:
    result = translate_values("verl", VERL | {"data.custom_cls.path": "my_data.py"})
    assert result.toml, [str(refusal) for refusal in result.blocking]
    assert [note for note in result.notes if note.startswith("data.custom_cls.path = my_data.py")], result.notes
