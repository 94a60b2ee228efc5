"""Settings of ROLL, TRL, Unsloth and verl become the same training."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.config import RunConfig, parse_config
from shoal.config.translate import SYSTEMS, Translation, translate
from shoal.config.translate.given import Given
from shoal.config.translate.reading import read_given

BASE = ("model.path=m", 'data.sources=[{path = "d.jsonl"}]')


def _translate(system: str, values: dict[str, Any], *overrides: str) -> Translation:
    return translate(SYSTEMS[system], Given(dict(values)), overrides=[*BASE, *overrides])


def _config(system: str, values: dict[str, Any], *overrides: str) -> RunConfig:
    translation = _translate(system, values, *overrides)
    assert translation.toml, [str(refusal) for refusal in translation.blocking]
    return parse_config(translation.values)


ROLL_GUIDE: dict[str, Any] = {
    "rollout_batch_size": 64,
    "num_return_sequences_in_group": 8,
    "prompt_length": 2048,
    "response_length": 4096,
    "adv_estimator": "grpo",
    "ppo_epochs": 1,
    "use_kl_loss": True,
    "kl_loss_coef": 0.001,
    "loss_agg_mode": "seq-mean-token-mean",
    "whiten_advantages": True,
    "advantage_clip": 2.0,
    "dual_clip_loss": True,
    "reward_clip": 10,
    "reward_norm": None,
    "reward_shift": False,
    "reward_scale": False,
    "add_token_level_kl": False,
}


def test_rolls_guide_is_translated_with_rolls_constants() -> None:
    config = _config("roll", ROLL_GUIDE)
    assert (config.grpo.groups_per_step, config.grpo.group_size) == (64, 8)
    assert (config.data.max_prompt_tokens, config.sampling.max_completion_tokens) == (2048, 4096)
    assert (config.advantage.baseline, config.advantage.scale, config.advantage.std_ddof) == (
        "group_mean",
        "group_std",
        1,
    )
    assert (config.advantage.whiten, config.advantage.clip, config.advantage.reward_clip) == (True, 2.0, 10)
    assert (config.kl.coef, config.kl.place, config.kl.estimator, config.kl.output_clamp) == (0.001, "loss", "k3", 10)
    assert config.loss.aggregation == "seq-mean-token-mean"
    assert config.loss.dual_clip == pytest.approx(1.4), "1 + 2 x pg_clip"
    assert (config.loss.clip_low, config.loss.clip_high) == (0.2, 0.2)


def test_rolls_yaml_is_read_with_its_nested_tables_and_references(tmp_path: Path) -> None:
    path = tmp_path / "rlvr.yaml"
    path.write_text(
        "pretrain: org/model\nrollout_batch_size: 32\nnum_return_sequences_in_group: 8\nresponse_length: 512\n"
        "adv_estimator: grpo\nexp_name: 'a run'\nlogging_dir: ./out/${exp_name}\n"
        "actor_train:\n  training_args:\n    learning_rate: 1.0e-6\n    per_device_train_batch_size: 1\n"
        "    gradient_accumulation_steps: 32\n  device_mapping: list(range(0,4))\n"
        "  data_args:\n    file_name:\n      - data/a.jsonl\n"
        "actor_infer:\n  generating_args:\n    temperature: 0.99\n    top_p: 0.99\n"
    )
    translation = translate(SYSTEMS["roll"], read_given(SYSTEMS["roll"], [str(path)]))
    assert [refusal.name for refusal in translation.blocking] == ["actor_infer.generating_args.top_p"]
    config = parse_config(translation.values)
    assert (config.learner.learning_rate, config.launch.num_learner_ranks) == (1e-6, 4)
    assert config.grpo.num_mini_batches == 32 * 8 // (1 * 32 * 4)
    assert (config.run.name, config.data.sources[0].path) == ("a-run", "data/a.jsonl")


@pytest.mark.parametrize(
    ("values", "objective", "options"),
    [
        ({"importance_sampling": "seq"}, "gspo", {"clip_low": 0.2}),
        ({"pg_variant": "cispo"}, "cispo", {"clip_low": 0.1, "clip_high": 0.1, "cispo_lower": True}),
        ({"pg_variant": "tis", "tis_upper_bound": 2.0}, "truncated_is", {"ratio_low": 0.0, "ratio_high": 2.0}),
        ({"pg_variant": "topr", "topr_negative_weight": 0.5}, "topr", {"topr_negative_weight": 0.5}),
        ({"pg_variant": "kimi15"}, "kimi15", {"kimi15_tau": 0.1}),
        ({"pg_variant": "vanilla"}, "policy_gradient", {}),
        ({"use_pg_clip_range": True, "pg_clip_high": 0.28}, "ppo_clip", {"clip_low": 0.2, "clip_high": 0.28}),
    ],
)
def test_rolls_variants_have_their_objectives(values: dict[str, Any], objective: str, options: dict[str, Any]) -> None:
    loss = _config(
        "roll", {"adv_estimator": "grpo", "response_length": 64, "num_return_sequences_in_group": 4, **values}
    ).loss
    assert loss.objective == objective
    assert {name: getattr(loss, name) for name in options} == options


@pytest.mark.parametrize(
    ("values", "baseline", "scale"),
    [
        ({"reward_norm": "running", "reward_shift": True}, "running_mean", "none"),
        ({"reward_norm": "running", "reward_scale": True}, "none", "running_std"),
        ({"reward_norm": "running", "reward_shift": True, "reward_scale": True}, "running_mean", "running_std"),
        ({"norm_mean_type": "group", "norm_std_type": "running"}, "group_mean", "running_std"),
        ({"reward_norm": "batch"}, "batch_mean", "batch_std"),
        ({"reward_norm": "batch", "reward_shift": True, "reward_scale": True}, "batch_mean", "none"),
        ({"reward_norm": "group", "reward_scale": True}, "group_mean", "group_std"),
        ({"adv_estimator": "grpo", "reward_norm": "running", "reward_shift": True}, "group_mean", "none"),
        ({"reward_shift": True}, "none", "none"),
    ],
)
def test_rolls_older_words_for_normalization_mean_what_they_meant(
    values: dict[str, Any], baseline: str, scale: str
) -> None:
    advantage = _config("roll", ROLL_GUIDE | {"adv_estimator": "reinforce"} | values).advantage
    assert (advantage.baseline, advantage.scale, advantage.std_ddof, advantage.std_eps) == (baseline, scale, 1, 1e-6)


TRL: dict[str, Any] = {"max_steps": 100}


def test_trls_defaults_hold() -> None:
    config = _config("trl", TRL)
    assert (config.advantage.scale, config.advantage.std_ddof, config.advantage.std_eps) == ("group_std", 1, 1e-4)
    assert (config.loss.objective, config.loss.aggregation) == ("ppo_clip", "token-mean")
    assert (config.loss.clip_low, config.loss.clip_high, config.loss.dual_clip) == (0.2, 0.2, None)
    assert (config.correction.weight, config.correction.weight_high) == ("sequence", 3.0)
    (test,) = config.correction.filters
    assert (test.level, test.high, test.low, test.reject) == ("sequence_sum", 3.0, None, False)
    assert (config.learner.adam_beta2, config.learner.lr_scheduler, config.learner.learning_rate) == (
        0.999,
        "linear",
        1e-6,
    )
    assert (config.kl.coef, config.grpo.max_staleness, config.run.num_steps) == (0.0, 0, 100)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"loss_type": "grpo"}, {"objective": "ppo_clip", "aggregation": "seq-mean-token-mean"}),
        ({"loss_type": "dr_grpo"}, {"aggregation": "seq-mean-token-sum-norm", "denominator": None}),
        ({"loss_type": "grpo", "importance_sampling_level": "sequence"}, {"objective": "gspo"}),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, {"objective": "cispo", "cispo_cap": 5.0, "cispo_lower": False}),
        ({"loss_type": "sapo"}, {"objective": "sapo", "sapo_tau_negative": 1.05, "sapo_tau_positive": 1.0}),
        ({"loss_type": "vespo", "vespo_k_pos": 1.5}, {"objective": "vespo", "vespo_k_positive": 1.5}),
        ({"loss_type": "luspo"}, {"objective": "luspo", "aggregation": "seq-mean-token-sum"}),
        ({"delta": 1.5, "epsilon_high": 0.28}, {"dual_clip": 1.5, "clip_high": 0.28}),
        ({"top_entropy_quantile": 0.2}, {"top_entropy_share": 0.2}),
    ],
)
def test_trls_losses_have_their_objectives(values: dict[str, Any], expected: dict[str, Any]) -> None:
    loss = _config("trl", TRL | values).loss
    assert {name: getattr(loss, name) for name in expected} == expected


def test_trls_own_reward_functions_are_verifiers_and_parts_by_their_weights() -> None:
    functions = ["accuracy_reward", "trl.rewards.think_format_reward", "get_soft_overlong_punishment(100, 20)"]
    values = TRL | {"dataset_name": "org/math", "reward_funcs": functions, "reward_weights": [1.0, 0.5, 2.0]}
    config = parse_config(translate(SYSTEMS["trl"], Given(values), overrides=["model.path=m"]).values)
    (data,) = config.data.sources
    assert (data.dataset, data.messages_column, data.verifier) == ("org/math", "prompt", "math")
    assert data.ground_truth_column == "solution"
    assert config.reward.weights == {"math": 1.0}
    assert (config.reward.format.kind, config.reward.format.mode, config.reward.format.value) == ("think", "add", 0.5)
    overlong = config.reward.overlong
    assert (overlong.factor, overlong.max_length_tokens, overlong.buffer_tokens) == (2.0, 100, 20)
    assert not config.advantage.partial_rewards, "parts make one reward"
    alone = _config("trl", TRL | {"reward_funcs": ["accuracy_reward"]})
    assert alone.reward.weights == {"math": 1.0} and alone.advantage.partial_rewards
    assert (alone.reward.verifiers.math.extraction, alone.reward.verifiers.math.boxed_match_priority) == (["latex"], 0)


def test_trls_reward_for_length_pays_by_right_and_wrong_without_paying_twice() -> None:
    text = "get_cosine_scaled_reward(max_len=200, max_value_correct=2.0)"
    reward = _config("trl", TRL | {"reward_funcs": [text, "get_repetition_penalty_reward(2)"]}).reward
    assert not reward.apply_verifiable_reward
    assert (reward.cosine.factor, reward.cosine.max_length_tokens, reward.cosine.correct_short) == (1.0, 200, 2.0)
    assert (reward.repetition.ngram_size, reward.repetition.max_penalty) == (2, -1.0)
    script = _config("trl", TRL | {"reward_funcs": ["accuracy_reward", "get_soft_overlong_punishment"]}).reward
    assert (script.overlong.max_length_tokens, script.overlong.buffer_tokens) == (1280, 256), "trl grpo's own numbers"


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        ({"reward_funcs": ["my_reward"]}, "reward_funcs", "reward.custom.NAME.file"),
        ({"reward_funcs": ["reasoning_accuracy_reward"]}, "reward_funcs", "only what follows </think>"),
        ({"reward_funcs": ["org/reward-model", "accuracy_reward"]}, "reward_funcs", '["math", "reward_model"]'),
        ({"reward_funcs": ["lambda completions: [1.0]"]}, "reward_funcs", "reward.custom.NAME.file"),
        ({"reward_funcs": ["get_soft_overlong_punishment(x=1)"]}, "reward_funcs", "has no parameter x"),
        ({"reward_funcs": ["accuracy_reward"], "reward_weights": [1, 2]}, "reward_weights", "2 for 1 reward_funcs"),
        ({"reward_weights": [1.0]}, "reward_weights", "not given"),
        (
            {"reward_funcs": ["think_format_reward"], "multi_objective_aggregation": "normalize_then_sum"},
            "multi_objective_aggregation",
            '["math", "think_format"]',
        ),
    ],
)
def test_reward_functions_without_a_counterpart_are_refused_by_name(
    values: dict[str, Any], field: str, message: str
) -> None:
    translation = translate(SYSTEMS["trl"], Given(TRL | {"dataset_name": "d"} | values), overrides=["model.path=m"])
    refusals = [item for item in translation.blocking if item.name == field]
    assert refusals and message in str(refusals[0]), [str(item) for item in refusals]


def test_a_reward_model_of_trl_scores_beside_the_form_of_an_answer() -> None:
    values = TRL | {"dataset_name": "d", "reward_model_name_or_path": "org/reward"}
    values |= {"reward_funcs": ["think_format_reward"], "reward_weights": [2.0, 0.5]}
    config = parse_config(translate(SYSTEMS["trl"], Given(values), overrides=["model.path=m"]).values)
    assert (config.reward.model.path, config.data.sources[0].verifier) == ("org/reward", "reward_model")
    assert (config.reward.weights, config.reward.format.value) == ({"reward_model": 2.0}, 0.5)


def test_rolls_reward_model_is_answered_by_ours() -> None:
    roll = ROLL_GUIDE | {"reward.model_args.model_type": "x"}
    assert "--set reward.model.path=MODEL" in str(_translate("roll", roll).blocking[0])
    assert not _translate("roll", roll, "reward.model.path=org/r").blocking


def test_reward_functions_are_read_from_the_trainers_call(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "soft = get_soft_overlong_punishment(max_completion_len=64, soft_punish_cache=16)\n"
        "args = GRPOConfig(max_steps=10, reward_weights=[1.0, 0.1, 1.0])\n"
        "trainer = GRPOTrainer('org/model', [accuracy_reward, mine, soft], args, load())\n"
    )
    values = read_given(SYSTEMS["trl"], [str(path)]).values
    assert values["GRPOTrainer.model"] == "org/model"
    assert values["GRPOTrainer.reward_funcs"] == [
        "accuracy_reward", "mine", "get_soft_overlong_punishment(max_completion_len=64, soft_punish_cache=16)"
    ]  # fmt: skip
    translation = translate(SYSTEMS["trl"], Given(values | {"dataset_name": "d"}))
    assert [(refusal.name, refusal.value) for refusal in translation.blocking] == [("reward_funcs", "mine")]
    assert _config("trl", values).reward.overlong.max_length_tokens == 64, "data of one's own answers it"


def test_trls_generation_batches_become_groups_and_mini_batches() -> None:
    values = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2, "steps_per_generation": 8}
    config = _config("trl", TRL | values | {"num_generations": 8, "num_iterations": 2})
    assert (config.grpo.groups_per_step, config.grpo.num_mini_batches, config.grpo.num_epochs) == (16, 4, 2)
    assert config.run.num_steps == 13, "100 optimizer steps, 8 of them a step"


def test_passes_over_data_of_unknown_length_are_answered_by_the_number_of_steps() -> None:
    (refusal,) = _translate("trl", {"num_train_epochs": 2}).blocking
    assert refusal.name == "num_train_epochs" and "run.num_steps" in refusal.reason
    assert _config("trl", {"num_train_epochs": 2}, "run.num_steps=7").run.num_steps == 7


def test_unsloths_defaults_differ_from_trls() -> None:
    config = _config("unsloth", {"max_steps": 100, "max_seq_length": 1024, "max_completion_length": 200})
    assert (config.learner.learning_rate, config.learner.weight_decay, config.run.seed) == (5e-5, 0.001, 3407)
    assert (config.learner.warmup_ratio, config.correction.weight) == (0.1, "none")
    assert (config.data.max_prompt_tokens, config.generator.max_model_len) == (824, 1024)
    assert _config("unsloth", {"max_steps": 9, "loss_type": "bnpo"}).kl.coef == 0.001


def test_a_python_file_is_read_without_being_run(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import does_not_exist\nlength = 1024\nargs = GRPOConfig(max_steps=5 * 10,\n"
        "    max_completion_length=length - 256, lr_scheduler_type='cosine', report_to=['wandb', 'tensorboard'])\n"
    )
    values = read_given(SYSTEMS["trl"], [str(path)]).values
    assert (values["max_steps"], values["max_completion_length"]) == (50, 768)
    config = _config("trl", values)
    assert (config.tracking.wandb, config.tracking.tensorboard) == ("online", True)
    path.write_text("args = GRPOConfig(max_steps=len(data), logging_steps=len(data))\n")
    translation = translate(SYSTEMS["trl"], read_given(SYSTEMS["trl"], [str(path)]), overrides=BASE)
    (refusal,) = (refusal for refusal in translation.blocking if refusal.name == "max_steps")
    assert "line 1, len(data), cannot be read without running" in refusal.reason
    assert any(note.startswith("logging_steps has no value") for note in translation.notes), "it changes nothing"


def test_json_and_yaml_are_read_alike(tmp_path: Path) -> None:
    values = {"max_steps": 3, "learning_rate": 1e-5}
    (tmp_path / "a.json").write_text(json.dumps(values))
    (tmp_path / "a.yaml").write_text("max_steps: 3\nlearning_rate: 1e-5\n")
    first, second = (read_given(SYSTEMS["trl"], [str(tmp_path / name)]).values for name in ("a.json", "a.yaml"))
    assert _config("trl", first) == _config("trl", second)


VERL: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.n": 5,
    "trainer.total_training_steps": 10,
}


def test_verls_defaults_hold() -> None:
    config = _config("verl", VERL)
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
def test_verls_overrides_are_translated(name: str, value: Any, expected: dict[str, Any]) -> None:
    values = _translate("verl", VERL | {name: value})
    assert values.toml, [str(refusal) for refusal in values.blocking]
    got = {key: values.values[key.split(".")[0]].get(key.split(".")[1]) for key in expected}
    assert got == expected


def test_verls_script_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "set -x\nM=${M:-org/model}\npython3 -m verl.trainer.main_ppo \\\n  algorithm.adv_estimator=grpo \\\n"
        "  data.train_files=\"['a.parquet','b.parquet']\" data.train_batch_size=64 \\\n"
        "  actor_rollout_ref.model.path=$M actor_rollout_ref.actor.ppo_mini_batch_size=32 \\\n"
        "  +actor_rollout_ref.rollout.n=8 trainer.total_training_steps=20 trainer.logger='[\"console\"]' $@\n"
    )
    translation = translate(SYSTEMS["verl"], read_given(SYSTEMS["verl"], [str(path)]))
    assert translation.toml, [str(refusal) for refusal in translation.blocking]
    config = parse_config(translation.values)
    assert [source.path for source in config.data.sources] == ["a.parquet", "b.parquet"]
    assert config.data.sources[0].ground_truth_column == "reward_model.ground_truth"
    assert (config.model.path, config.grpo.num_mini_batches, config.run.num_steps) == ("org/model", 2, 20)


def test_an_unknown_override_is_refused_with_what_is_near() -> None:
    (refusal,) = _translate("verl", VERL | {"actor_rollout_ref.rollout.temprature": 1.0}).blocking
    assert "did you mean actor_rollout_ref.rollout.temperature" in refusal.reason


def test_verls_k1_bounds_the_inverse_of_the_ratio() -> None:
    rejection = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.8_1.6"}
    values = {f"algorithm.rollout_correction.{name}": value for name, value in rejection.items()}
    (test,) = _config("verl", VERL | values).correction.filters
    assert (test.statistic, test.level, test.reject) == ("ratio", "sequence_mean", True)
    assert (test.low, test.high) == (pytest.approx(1 / 1.6), pytest.approx(1 / 0.8))


def test_every_option_of_verls_rejection_is_a_test_and_all_must_pass() -> None:
    prefix = "algorithm.rollout_correction"
    several = {f"{prefix}.rollout_rs": "token_k1,seq_max_k2", f"{prefix}.rollout_rs_threshold": "0.6_1.6,2.5"}
    first, second = _config("verl", VERL | several).correction.filters
    assert (first.statistic, first.level, first.low, first.high) == ("ratio", "token", 1 / 1.6, 1 / 0.6)
    assert (second.statistic, second.level, second.low, second.high) == ("k2", "sequence_max", None, 2.5)
    assert first.reject and second.reject
    one = {f"{prefix}.rollout_rs": "seq_sum_k3,token_k2", f"{prefix}.rollout_rs_threshold": "2.0"}
    assert [test.high for test in _config("verl", VERL | one).correction.filters] == [2.0, 2.0]
    upper = {f"{prefix}.rollout_rs": "token_k1", f"{prefix}.rollout_rs_threshold": "2.0"}
    (test,) = _config("verl", VERL | upper).correction.filters
    assert (test.low, test.high) == (0.5, 2.0), "the lower bound is the upper one's inverse"


@pytest.mark.parametrize(
    ("options", "bounds", "message"),
    [
        ("token_k1,seq_max_k2", "1,2,3", "has 2 options and rollout_rs_threshold 3 bounds"),
        ("seq_max_k1", "2.0", "'seq_max_k1' is unknown"),
        ("token_k2", "0.5_2.0", "token_k2 has an upper bound alone"),
        ("token_k1", "2.0_0.5", "the lower one below the upper one"),
        ("token_k1", "wide", "'wide' is no bound"),
        ("token_k1", None, "rollout_rs_threshold must say its bounds"),
    ],
)
def test_a_rejection_that_verl_would_not_take_is_refused(options: str, bounds: str | None, message: str) -> None:
    prefix = "algorithm.rollout_correction"
    values = {f"{prefix}.rollout_rs": options, f"{prefix}.rollout_rs_threshold": bounds}
    (refusal,) = _translate("verl", VERL | values).blocking
    assert message in refusal.reason and refusal.name == f"{prefix}.rollout_rs"


@pytest.mark.parametrize(
    ("system", "name", "base"),
    [
        ("trl", "lr_scheduler_type", {"max_steps": 10}),
        ("roll", "actor_train.training_args.lr_scheduler_type", None),
        ("open-instruct", "lr_scheduler_type", {}),
    ],
)
def test_schedulers_are_those_of_transformers_or_refused_with_the_reason(
    system: str, name: str, base: dict[str, Any] | None
) -> None:
    values = ROLL_GUIDE if base is None else base
    assert _translate(system, values | {name: "cosine"}).values["learner"]["lr_scheduler"] == "cosine"
    for refused, reason in (
        ("reduce_lr_on_plateau", "waits for a loss"),
        ("greedy", "follows a loss"),
        ("x", "no such"),
    ):
        (refusal,) = [item for item in _translate(system, values | {name: refused}).blocking if item.name == name]
        assert reason in refusal.reason and "cosine_with_min_lr" in refusal.reason


def test_options_of_schedulers_become_shares_of_the_peak() -> None:
    base = {"max_steps": 10, "learning_rate": 1e-5}
    options = {"min_lr": 1e-6, "warmup_lr_rate": 0.1}
    learner = _config(
        "trl", base | {"lr_scheduler_type": "cosine_warmup_with_min_lr", "lr_scheduler_kwargs": options}
    ).learner
    assert learner.lr_scheduler == "cosine_warmup_with_min_lr"
    assert (learner.lr_min_ratio, learner.lr_warmup_start_ratio) == (pytest.approx(0.1), 0.1)
    assert _config("trl", base | {"lr_scheduler_type": "polynomial"}).learner.lr_min_ratio == pytest.approx(0.01)
    kwargs = {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_stable_steps": 3}}
    assert "num_stable_steps" in str(_translate("trl", base | kwargs).blocking[0])


def test_stop_strings_and_chat_templates_of_the_peers_are_taken() -> None:
    roll = {"actor_infer.generating_args.stop_strings": ["</answer>"], "actor_train.data_args.template": "chatml"}
    config = _config("roll", ROLL_GUIDE | roll)
    assert (config.sampling.stop_strings, config.model.chat_template) == (["</answer>"], "chatml")
    assert _config("roll", ROLL_GUIDE | {"actor_train.data_args.template": "native"}).model.chat_template is None
    assert "known here" in str(_translate("roll", ROLL_GUIDE | {"actor_train.data_args.template": "x"}).blocking[0])
    trl = {"generation_kwargs": {"stop": "</answer>"}}
    assert _config("trl", trl, "run.num_steps=10").sampling.stop_strings == ["</answer>"]
    refused = _translate("trl", {"generation_kwargs": {"seed": 1}}, "run.num_steps=10").blocking
    assert "only `stop` has a counterpart" in str(refused[0])
    verl = {"actor_rollout_ref.rollout.n": 8, "algorithm.adv_estimator": "grpo"}
    verl |= {"actor_rollout_ref.model.custom_chat_template": "{{ messages }}"}
    assert _config("verl", verl, "run.num_steps=10").model.chat_template == "{{ messages }}"


@pytest.mark.parametrize("prefix", ["reward_model.reward_kwargs.overlong_buffer_cfg", "reward_model.overlong_buffer"])
def test_dapos_buffer_is_a_part_of_the_reward(prefix: str) -> None:
    buffer = {f"{prefix}.enable": True, f"{prefix}.len": 4096, f"{prefix}.penalty_factor": 1.0}
    base = {"actor_rollout_ref.model.path": "m", "data.train_files": ["a.parquet"]}
    base |= {"algorithm.adv_estimator": "grpo", "trainer.total_training_steps": 5, "actor_rollout_ref.rollout.n": 8}
    base |= {"data.max_response_length": 20480}
    overlong = _config("verl", base | buffer | {"reward_model.reward_manager": "dapo"}).reward.overlong
    assert (overlong.factor, overlong.buffer_tokens, overlong.max_length_tokens) == (1.0, 4096, None)
    assert _config("verl", base | buffer).reward.overlong.factor == 0, "the naive reward manager has no buffer"
