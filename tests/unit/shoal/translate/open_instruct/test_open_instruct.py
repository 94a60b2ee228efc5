"""Tests of the translation of open-instruct's launch scripts and flags."""

import re
from pathlib import Path

import pytest

from shoal.chat_templates import template_text
from shoal.config import RunConfig, parse_config
from shoal.errors import InvalidArgument
from shoal.translate import Translation, translate_arguments
from tests.golden import golden_folder

MODEL = ("--model_name_or_path", "m")


def _translate(*flags: str, **options: tuple[str, ...]) -> Translation:
    return translate_arguments("open-instruct", [*MODEL, *flags], **options)


def _config(*flags: str) -> RunConfig:
    translation = _translate(*flags)
    assert translation.toml, [str(refusal) for refusal in translation.blocking]
    return parse_config(translation.values)


def _refusals(*flags: str) -> dict[str, str]:
    return {refusal.name: refusal.reason for refusal in _translate(*flags).blocking}


def test_without_flags_the_defaults_in_the_code_of_open_instruct_apply() -> None:
    config = _config()
    assert (config.advantage.baseline, config.advantage.scale) == ("group_mean", "none")
    assert (config.loss.objective, config.loss.clip_low, config.loss.clip_high) == ("ppo_clip", 0.2, 0.272)
    assert (config.loss.aggregation, config.loss.baseline) == ("token-mean", "proximal")
    assert (config.kl.coef, config.kl.estimator, config.kl.input_clamp) == (0.05, "k3", 40.0)
    assert (config.correction.weight, config.correction.weight_low, config.correction.weight_high) == ("token", None, 2)
    assert (config.grpo.max_staleness, config.grpo.group_size, config.grpo.groups_per_step) == (8, 4, 16)
    assert (config.learner.learning_rate, config.learner.lr_scheduler) == (2e-5, "linear")
    assert (config.learner.adam_beta2, config.learner.max_grad_norm) == (0.999, 1.0)
    assert (config.run.seed, config.run.num_steps) == (42, 100_000 // 64)
    assert config.data.sources[0].weight == 10.0
    assert config.learner.gradient_checkpointing, "open-instruct always checkpoints"


def test_weight_decay_is_what_the_code_of_open_instruct_does_not_what_its_flag_says() -> None:
    def decays(*flags: str) -> tuple[float, bool]:
        learner = _config(*flags).learner
        return learner.weight_decay, learner.weight_decay_on_bias_and_norm

    flag = "--set_weight_decay_on_bias_and_norm"
    assert decays("--weight_decay", "0.1") == decays("--weight_decay", "0.1", flag) == (0.1, False)
    assert decays("--weight_decay", "0.1", flag, "false") == decays(flag, "false") == (0.01, True)
    assert decays()[0] == 0


def test_standard_advantages_use_the_population_deviation() -> None:
    advantage = _config("--advantage_normalization_type", "standard").advantage
    assert (advantage.scale, advantage.std_ddof, advantage.std_eps) == ("group_std", 0, 1e-8)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--rho_mask_lower_bound", "0.5", "--rho_mask_upper_bound", "5"], ("ratio", "token", 0.5, 5.0, False)),
        (
            ["--rho_mask_upper_bound", "5", "--rho_mask_sequence_level"],
            ("ratio", "sequence_mean", None, 5.0, False),
        ),
        (
            ["--rho_mask_upper_bound", "5", "--rho_mask_tv_divergence", "true"],
            ("tv", "sequence_mean", None, 5.0, True),
        ),
    ],
)
def test_masks_of_the_train_inference_ratio_become_filters(flags: list[str], expected: tuple[object, ...]) -> None:
    (test,) = _config(*flags).correction.filters
    assert (test.statistic, test.level, test.low, test.high, test.only_harmful) == expected
    assert not test.reject, "open-instruct keeps dropped tokens in the divisor"


def test_older_spellings_have_the_same_meaning() -> None:
    old = _config(
        "--truncated_importance_sampling_ratio_cap", "2.0", "--active_fill_completions", "--no_resample_solve_rate",
        "0.9", "--kl_estimator", "kl3", "--wandb_project_name", "p",
    )  # fmt: skip
    new = _config(
        "--rho_clamp_upper_bound", "2.0", "--active_sampling", "--no_resampling_pass_rate", "0.9", "--kl_estimator",
        "2", "--wandb_project", "p",
    )  # fmt: skip
    assert old == new
    assert old.grpo.active_sampling and old.grpo.easy_rate == 0.9


@pytest.mark.parametrize(
    ("flags", "name", "reason"),
    [
        (["--use_vllm_logprobs", "true"], "use_vllm_logprobs", "there is nothing to correct"),
        (["--loss_denominator", "0"], "loss_denominator", 'must be "token" or a positive number'),
        (["--loss_denominator", "tokens"], "loss_denominator", 'must be "token" or a positive number'),
        (
            ["--checkpoint_state_dir", "x", "--checkpoint_state_freq", "-1"],
            "checkpoint_state_dir",
            "needs checkpoint_state_freq above 0",
        ),
        (["--gs_bucket_path", "s3://b"], "gs_bucket_path", "must begin with gs://"),
        (["--eval_on_step_0", "true", "--local_eval_every", "-1"], "eval_on_step_0", "needs local_eval_every above 0"),
        (["--load_ref_policy", "false"], "load_ref_policy", "without a reference policy beta must be 0"),
        (["--rho_mask_lower_bound", "1.5"], "rho_mask_lower_bound", "must be below 1"),
        (["--rho_clamp_upper_bound", "0.5"], "rho_clamp_upper_bound", "must be above 1"),
        (["--pack_length", "100"], "pack_length", "at least max_prompt_token_length + response_length (512)"),
        (["--sequence_parallel_size", "2", "--num_learners_per_node", "2"], "learner", "needs zero_stage 3"),
        (["--num_unique_prompts_rollout", "6", "--num_mini_batches", "4"], "grpo", "divisible by num_mini_batches"),
        (["--advantage_normalization_type", "zscore"], "advantage_normalization_type", "centered and standard"),
        (["--active_sampling", "--filter_zero_std_samples", "false"], "active_sampling", "filter_zero_std_samples"),
        (["--dataset_mixer_list", "a", "1.0", "b"], "dataset_mixer_list", "must alternate names and amounts"),
        (["--total_episodes", "10"], "config", "at least the 64 completions of one step"),
        (["--tools", "search"], "tools", "known: python"),
        (["--num_learner_per_node", "2"], "num_learner_per_node", "did you mean num_learners_per_node"),
        (["--learning_rate", "fast"], "learning_rate", "a number is expected"),
    ],
)
def test_a_violated_rule_is_refused_with_the_field(flags: list[str], name: str, reason: str) -> None:
    refusals = _refusals(*flags)
    assert name in refusals, refusals
    assert reason in refusals[name]


def test_a_refusal_that_does_not_affect_training_does_not_block() -> None:
    translation = _translate("--push_to_hub", "--oe_eval_tasks", "a,b")
    assert translation.toml and not translation.blocking
    assert {refusal.name for refusal in translation.refusals} == {"push_to_hub", "oe_eval_tasks"}


def test_skipped_fields_are_listed_at_the_head_of_the_file() -> None:
    flags = ("--use_fp8_kv_cache", "true")
    translation = _translate(*flags, skip=("use_fp8_kv_cache",))
    assert "Incomplete" in translation.toml and "use_fp8_kv_cache = true" in translation.toml
    assert not _translate(*flags).toml


def test_stop_strings_keep_their_spaces_and_brackets() -> None:
    assert _config("--stop_strings", "</answer>").sampling.stop_strings == ["</answer>"]
    assert _config("--stop_strings", "[the end]", "a, b").sampling.stop_strings == ["[the end]", "a, b"]
    assert _config().sampling.stop_strings == []
    assert "texts are expected" in _refusals("--stop_strings")["stop_strings"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("tulu", "tulu"),
        ("tulu_thinker", "tulu_thinker"),
        ("simple_concat_with_new_line", "simple"),
        ("simple_concat_with_space", "simple_space"),
        ("r1_simple_chat_postpend_think", "r1_zero"),
    ],
)
def test_a_chat_template_is_taken_by_its_name(theirs: str, ours: str) -> None:
    assert _config("--chat_template_name", theirs).model.chat_template == ours
    with_bos = _config("--chat_template_name", theirs, "--add_bos").model.chat_template
    assert with_bos == "{{ bos_token }}" + template_text(ours)


def test_a_different_wording_of_an_instruction_is_noted() -> None:
    notes = _translate("--chat_template_name", "r1_simple_chat_postpend_think").notes
    assert any("own wording" in note for note in notes), notes
    assert not any("own wording" in note for note in _translate("--chat_template_name", "tulu").notes)


@pytest.mark.parametrize(("theirs", "ours"), [("olmo_thinker_rlzero", "answer_line"), ("zephyr", "zephyr")])
def test_chat_templates_map_to_templates_with_the_same_turns(theirs: str, ours: str) -> None:
    assert _config("--chat_template_name", theirs).model.chat_template == ours


def test_every_chat_template_of_open_instruct_is_known_or_refused_with_its_reason() -> None:
    found = golden_folder().parent / "reference" / "open-instruct.md"
    if not found.exists():
        pytest.skip("the reference is not next to the checkout")
    text = found.read_text(encoding="utf-8").split("Chat templates (21): ")[1].split(". Tokenizer")[0]
    names = re.findall(r"(?:^|, )([a-z0-9_]+)", re.sub(r"\([^)]*\)", "", text))
    assert len(names) == 21, names
    for name in names:
        reason = _refusals("--chat_template_name", name).get("chat_template_name", "")
        assert "no template of this name" not in reason, name


def test_a_chat_template_without_a_counterpart_is_refused_unless_one_is_configured() -> None:
    assert "by Ai2" in _refusals("--chat_template_name", "olmo_thinker")["chat_template_name"]
    assert "silently uses the tokenizer's" in _refusals("--chat_template_name", "olmo123")["chat_template_name"]
    assert "is unknown here" in _refusals("--add_bos")["add_bos"]
    overrides = ("model.chat_template={{ messages[0].content }}",)
    assert not _translate("--chat_template_name", "olmo_thinker", overrides=overrides).blocking


def test_every_line_names_its_origin() -> None:
    toml = _translate("--beta", "0.01").toml
    assert "# beta = 0.01" in toml
    assert "# clip_higher = 0.272 (" in toml


def test_a_launch_script_with_a_launcher_is_read(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "MIX='a/b 1.0 c/d 200'\nNAME=${NAME:-run_one}\npython mason.py --cluster x --gpus 8 -- source y.sh \\&\\& "
        "uv run python open_instruct/grpo_fast.py \\\n  --exp_name $NAME --num_learners_per_node 4 4 \\\n"
        "  --model_name_or_path m --dataset_mixer_list $MIX --total_episodes $((5 * 64)) --deepspeed_stage 2 \\\n"
        "  # --beta 0.3 \\\n"
    )
    translation = translate_arguments("open-instruct", [str(script)])
    config = parse_config(translation.values)
    assert config.run.name == "run_one" and config.run.num_steps == 5
    assert config.launch.num_learner_ranks == 8 and config.kl.coef == 0.05
    assert [(source.dataset, source.count) for source in config.data.sources] == [("a/b", None), ("c/d", 200)]
    assert any("--cluster, --gpus" in note for note in translation.notes)


def test_a_variable_that_the_script_does_not_set_is_named(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python grpo_fast.py --model_name_or_path m --dataset_mixer_list $NOWHERE --seed 1\n")
    (refusal,) = translate_arguments("open-instruct", [str(script)]).blocking
    assert refusal.name == "dataset_mixer_list" and "$NOWHERE" in refusal.reason


def test_a_script_without_a_known_trainer_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python finetune.py --x 1\n")
    with pytest.raises(InvalidArgument, match="starts no known trainer"):
        translate_arguments("open-instruct", [str(script)])
    script.write_text('bash "qwen3_4b.sh" --clip_higher 0.3\n')
    with pytest.raises(InvalidArgument, match=r"qwen3_4b\.sh"):
        translate_arguments("open-instruct", [str(script)])


def test_a_script_that_starts_trainers_with_the_same_settings_is_read_as_one(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "ALL=(--model_name_or_path m --beta 0.3)\npython grpo.py ${ALL[@]}\npython grpo_fast.py ${ALL[@]}\n"
    )
    assert parse_config(translate_arguments("open-instruct", [str(script)]).values).kl.coef == 0.3
    script.write_text(script.read_text() + "python grpo_fast.py ${ALL[@]} --seed 2\n")
    with pytest.raises(InvalidArgument, match=" 3 trainers"):
        translate_arguments("open-instruct", [str(script)])


def test_a_script_that_resumes_its_run_is_read_with_the_last_length(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    start = "python grpo_fast.py --model_name_or_path m --total_episodes"
    script.write_text(f"{start} 640 --beta 0.3\n{start} 1280 --beta 0.3\n")
    translation = translate_arguments("open-instruct", [str(script)])
    assert parse_config(translation.values).run.total_episodes == 1280
    assert any("the last length counts" in note for note in translation.notes)


def test_a_script_with_mock_data_says_that_it_would_not_read_its_own(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python mock_data_grpo_fast.py --model_name_or_path m\n")
    translation = translate_arguments("open-instruct", [str(script)])
    assert translation.toml and any("random data" in note for note in translation.notes)


def test_a_number_of_engines_that_only_a_run_could_show_is_left_to_the_launch(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python grpo_fast.py --model_name_or_path m --vllm_num_engines $ENGINES --beta $BETA\n")
    translation = translate_arguments("open-instruct", [str(script)])
    assert [refusal.name for refusal in translation.blocking] == ["beta"]
    assert any("launch.num_generators decides it here" in note for note in translation.notes), translation.notes


def test_the_example_of_the_experiment_config_is_read_as_python(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(
        "from open_instruct.grpo_utils import ExperimentConfig, GRPOLossType\nconfig = ExperimentConfig(\n"
        "    exp_name='olmo_7b_gsm8k', lr_scheduler_type='cosine', warmup_ratio=0.03, clip_higher=0.28,\n"
        "    loss_fn=GRPOLossType.dapo, num_mini_batches=2, total_episodes=50000, deepspeed_stage=2,\n"
        "    num_learners_per_node=[4, 4])\n"
    )
    assert [refusal.name for refusal in translate_arguments("open-instruct", [str(script)]).blocking] == [
        "model_name_or_path"
    ]
    translation = translate_arguments("open-instruct", [str(script)], overrides=["model.path=m"])
    config = parse_config(translation.values)
    steps = 50_000 // 64
    assert (config.run.num_steps, config.learner.warmup_steps) == (steps, int(steps * 2 * 0.03))
    assert config.launch.num_learner_ranks == 8 and config.loss.clip_high == 0.28


def test_the_format_reward_gates_unless_it_is_additive() -> None:
    form = _config("--apply_r1_style_format_reward", "true").reward.format
    assert (form.kind, form.mode, form.value) == ("r1", "gate", 1.0)
    flags = ("--apply_r1_style_format_reward", "--additive_format_reward", "true", "--r1_style_format_reward", "0.5")
    form = _config(*flags).reward.format
    assert (form.kind, form.mode, form.value) == ("r1", "add", 0.5)
    assert _config("--additive_format_reward", "true").reward.format.kind == "none"


def test_the_non_stop_penalty_needs_its_flag() -> None:
    assert _config("--non_stop_penalty", "--non_stop_penalty_value", "-1").reward.non_stop_penalty == -1
    assert _config("--non_stop_penalty", "true").reward.non_stop_penalty == 0
    assert _config("--non_stop_penalty_value", "-1").reward.non_stop_penalty is None


def test_remap_and_length_flags_configure_the_verifiers() -> None:
    reward = _config("--remap_verifier", "Math=strict_math", "--max_length_verifier_max_length", "512").reward
    assert reward.remap == {"math": "strict_math"}
    assert reward.verifiers.max_length.max_length_tokens == reward.verifiers.up_to_max_length.max_length_tokens == 512
    assert "old=new" in _refusals("--remap_verifier", "math")["remap_verifier"]
    assert not _config("--apply_verifiable_reward", "false").reward.apply_verifiable_reward


def test_all_tests_of_a_program_have_the_time_that_open_instruct_gives_them() -> None:
    slow = _config("--code_max_execution_time", "6", "--code_pass_rate_reward_threshold", "0.99").reward
    code = slow.verifiers.code
    assert (code.timeout_s, code.total_timeout_s, code.pass_rate_threshold) == (6.0, 60.0, 0.99)
    assert slow.verifiers.code_stdio == code and slow.timeout_s > code.total_timeout_s
    assert _config("--code_api_url", "http://localhost:1234/test_program").reward.verifiers.code.total_timeout_s == 30.0
    assert _config("--code_max_execution_time", "60").reward.verifiers.code.total_timeout_s == 300.0


def test_a_judge_that_alone_gives_rewards_is_not_left_out() -> None:
    flags = ("--apply_llm_verifier_reward", "true")
    assert _config(*flags).reward.apply_verifiable_reward
    alone = (*flags, "--apply_verifiable_reward", "false")
    assert list(_refusals(*alone)) == ["apply_llm_verifier_reward"]
    assert not _translate(*alone, overrides=("reward.apply_verifiable_reward=true",)).blocking


def test_a_judge_keeps_its_settings_and_takes_its_address_from_overrides() -> None:
    flags = ("--llm_judge_model", "hosted_vllm/Qwen/Qwen3-32B", "--llm_judge_timeout", "600")
    judge = _config(*flags).reward.judge
    assert (judge.model, judge.timeout_s, judge.total_timeout_s) == ("Qwen/Qwen3-32B", 600, 600)
    assert (judge.max_tokens, judge.temperature, judge.base_url) == (2048, 1.0, "")
    address = ("reward.judge.base_url=http://h/v1", "reward.judge.max_tokens=99")
    judge = parse_config(_translate(*flags, overrides=address).values).reward.judge
    assert (judge.base_url, judge.model, judge.max_tokens) == ("http://h/v1", "Qwen/Qwen3-32B", 99)


@pytest.mark.parametrize("how", ["-- python mason.py --env A=1 --env HOSTED_VLLM_API_BASE=$URL --", "export"])
def test_a_judge_on_a_server_has_the_address_that_the_script_gives_it(tmp_path: Path, how: str) -> None:
    script = tmp_path / "run.sh"
    export = "export HOSTED_VLLM_API_BASE=$URL" if how == "export" else ""
    launcher = "" if how == "export" else how.removeprefix("-- ")
    flags = "--model_name_or_path m --llm_judge_model hosted_vllm/Qwen/Qwen3-32B"
    script.write_text(f"URL=http://judge:8000/v1\n{export}\n{launcher} python open_instruct/grpo_fast.py {flags}\n")
    judge = parse_config(translate_arguments("open-instruct", [str(script)]).values).reward.judge
    assert (judge.base_url, judge.model) == ("http://judge:8000/v1", "Qwen/Qwen3-32B")


def test_the_address_of_a_server_is_none_for_a_judge_elsewhere() -> None:
    translation = _translate("--llm_judge_model", "gpt-4o", "--HOSTED_VLLM_API_BASE", "http://judge:8000/v1")
    assert parse_config(translation.values).reward.judge.base_url == ""
    assert any(note.startswith("HOSTED_VLLM_API_BASE = http://judge:8000/v1:") for note in translation.notes)


def test_without_judge_flags_there_is_no_judge() -> None:
    assert _config().reward.judge.model == ""


def test_rubrics_that_change_during_the_run_are_refused() -> None:
    assert list(_refusals("--apply_evolving_rubric_reward")) == ["apply_evolving_rubric_reward"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("local_eval_every", "5"), ("eval_pass_at_k", "4"), ("eval_top_p", "0.9"), ("eval_response_length", "64")],
)
def test_an_evaluation_flag_without_evaluation_data_is_noted(name: str, value: str) -> None:
    note = f"{name} = {value}: changes nothing without dataset_mixer_eval_list"
    assert note in _translate(f"--{name}", value).notes
    with_data = _translate(f"--{name}", value, "--temperature", "1", "--dataset_mixer_eval_list", "d.jsonl", "8")
    assert note not in with_data.notes


def test_a_flag_with_the_prefix_no_is_false() -> None:
    assert _config("--no_filter_zero_std_samples").grpo.keep_zero_signal
    for flag in ("--no_try_launch_beaker_eval_jobs", "--no-try-launch-beaker-eval-jobs", "--no_push_to_hub"):
        translation = _translate(flag)
        assert not translation.blocking, [str(refusal) for refusal in translation.blocking]
        assert not [refusal for refusal in translation.refusals if "beaker" in refusal.name or "hub" in refusal.name]
    assert "unknown field" in _refusals("--no_learning_rate")["no_learning_rate"]


def test_a_teacher_is_never_left_out() -> None:
    assert "distillation" in _refusals("--opd_teacher_model_name_or_path", "t")["opd_teacher_model_name_or_path"]
    assert list(_refusals("--opd_pure", "--opd_kl_coef", "1")) == ["opd_pure"]


def test_a_planned_feature_is_not_yet_available() -> None:
    refusals = _refusals("--opd_enabled", "true", "--apply_adaptive_rubric_reward", "true")
    assert set(refusals) == {"opd_enabled", "apply_adaptive_rubric_reward"}
    assert all(reason.startswith("not yet available: ") for reason in refusals.values())


@pytest.mark.parametrize(
    ("flag", "value", "ours"),
    [
        ("fsdp_num_replicas", "1", "ZeRO 3"),
        ("activation_memory_budget", "0.5", "learner.gradient_checkpointing"),
        ("deepspeed_checkpoint_load_universal", "true", "as many ranks"),
        ("backend_timeout", "1200", "weights.timeout_s"),
        ("vllm_sync_backend", "gloo", "weights.backend"),
        ("gather_whole_model", "false", "a bucket at a time"),
    ],
)
def test_how_work_is_spread_is_noted_with_what_decides_it_here(flag: str, value: str, ours: str) -> None:
    translation = _translate(f"--{flag}", value)
    assert not translation.blocking, [str(refusal) for refusal in translation.blocking]
    (note,) = [note for note in translation.notes if note.startswith(flag)]
    assert ours in note, note


def test_an_engine_leaves_a_learner_on_its_gpu_a_part_of_it() -> None:
    flags = ("--single_gpu_mode", "--vllm_gpu_memory_utilization")
    assert _config(*flags, "0.3").generator.gpu_memory_utilization == 0.3
    assert _config(*flags, "0.9").generator.gpu_memory_utilization == 0.4
    assert any("part of the GPU" in note for note in _translate(*flags, "0.9").notes)


def test_updates_that_are_not_in_flight_are_ours_too() -> None:
    assert not _config("--inflight_updates", "false").weights.inflight_updates
    assert _config().weights.inflight_updates


def test_code_of_a_model_is_trusted_only_where_the_source_does_with_a_note() -> None:
    assert not _config().model.trust_remote_code
    assert _config("--trust_remote_code").model.trust_remote_code
    assert any("Python code" in note for note in _translate("--trust_remote_code").notes)


def test_batches_that_an_earlier_trainer_counted_per_rank_are_multiplied() -> None:
    flags = ("--local_rollout_batch_size", "8", "--actor_num_gpus_per_node", "6", "--number_samples_per_prompt", "4")
    config = _config(*flags, "--local_mini_batch_size", "16", "--total_episodes", "1920", "--warmup_ratio", "0.5")
    grpo = config.grpo
    assert (grpo.groups_per_step, grpo.group_size, grpo.num_mini_batches) == (48, 4, 2)
    assert (config.run.num_steps, config.learner.warmup_steps) == (10, 10), "10 steps of 2 mini-batches"
    assert "local_mini_batch_size" in _refusals(*flags, "--local_mini_batch_size", "5")


def test_an_earlier_trainer_without_packing_has_the_defaults_nearest_to_its_time() -> None:
    flags = ("--local_rollout_batch_size", "8", "--max_prompt_token_length", "2048", "--response_length", "2048")
    config = _config(*flags)
    assert config.learner.pack_tokens == 4096
    assert (config.grpo.max_staleness, config.loss.clip_high, config.correction.weight) == (1, 0.2, "none")
    now = translate_arguments("open-instruct", [*MODEL, *flags], as_of="2026-08")
    assert parse_config(now.values).loss.clip_high == 0.272, "a month that is given decides"


def test_an_evaluation_asks_and_scores_as_training_does(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Answer briefly.\n\n")
    flags = ("--system_prompt_override_file", str(prompt), "--verification_reward", "5", "--ground_truths_key", "label")
    config = _config(*flags, "--dataset_mixer_eval_list", "e.jsonl", "8")
    for source in (config.data.sources[0], config.evaluation.sources[0]):
        assert (source.system_prompt, source.weight) == ("Answer briefly.", 5.0)
        assert source.ground_truth_column == "label"


def test_a_prompt_file_that_is_left_out_leaves_no_empty_prompt() -> None:
    left_out = _translate("--system_prompt_override_file", "nowhere.txt", skip=("all",))
    assert "system_prompt" not in left_out.values["data"]["sources"][0]


def test_an_evaluation_has_its_own_temperature_or_that_of_training() -> None:
    flags = ("--temperature", "0.9", "--dataset_mixer_eval_list", "d.jsonl", "8")
    assert _config(*flags).evaluation.temperature == 0.9
    assert _config(*flags, "--eval_temperature", "0.6").evaluation.temperature == 0.6


def test_a_ratio_of_warm_up_decides_before_a_number_of_steps() -> None:
    flags = ("--total_episodes", "6400", "--warm_up_steps", "7")
    assert _config(*flags).learner.warmup_steps == 7
    both = _translate(*flags, "--warmup_ratio", "0.1")
    assert parse_config(both.values).learner.warmup_steps == 10
    assert any("warm_up_steps = 7: warmup_ratio" in note for note in both.notes), both.notes


def test_quotes_for_the_shell_of_a_launcher_are_no_part_of_a_value(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    trainer = "python grpo_fast.py --model_name_or_path m --stop_strings '\"</answer>\"'\n"
    script.write_text(f"python mason.py --gpus 8 -- source x.sh \\&\\& {trainer}")
    config = parse_config(translate_arguments("open-instruct", [str(script)]).values)
    assert config.sampling.stop_strings == ["</answer>"]
    script.write_text(trainer)
    config = parse_config(translate_arguments("open-instruct", [str(script)]).values)
    assert config.sampling.stop_strings == ['"</answer>"'], "without a launcher there is one shell"


def test_exports_and_checkpoints_have_the_cadence_of_the_source() -> None:
    checkpoint = _config(
        "--save_freq", "40", "--checkpoint_state_freq", "20", "--keep_last_n_checkpoints", "5"
    ).checkpoint
    assert (checkpoint.export_every_steps, checkpoint.export_keep_last) == (40, 5)
    assert (checkpoint.every_steps, checkpoint.keep_last) == (20, 5)
    none = _config("--save_freq", "-1", "--keep_last_n_checkpoints", "-1").checkpoint
    assert (none.export_every_steps, none.export_keep_last, none.keep_last) == (0, 0, 1_000_000)
    assert _config().checkpoint.export_every_steps == 200


def test_a_bucket_for_checkpoints_is_the_mirror() -> None:
    both = ("--gs_bucket_path", "gs://bucket/models", "--gs_checkpoint_state_dir", "gs://bucket/states")
    assert _config(*both[:2]).checkpoint.mirror == "gs://bucket/models"
    assert _config(*both).checkpoint.mirror == "gs://bucket/states"


def test_a_model_that_fsdp_shards_is_sharded_here_too() -> None:
    assert _config("--fsdp_shard_degree", "8", "--num_learners_per_node", "8").learner.zero_stage == 3
    assert _config("--fsdp_shard_degree", "1").learner.zero_stage == 0
    assert _config("--fsdp_shard_degree", "8", "--deepspeed_stage", "2").learner.zero_stage == 2


def test_adapters_that_open_instruct_never_reads_are_noted() -> None:
    translation = _translate("--use_peft", "true", "--lora_r", "8")
    assert not translation.blocking and not parse_config(translation.values).learner.lora.rank
    assert sum("never reads it" in note for note in translation.notes) == 2


def test_a_smaller_support_is_bounded_and_used_in_evaluation_too() -> None:
    flags = ("--vllm_top_p", "0.95", "--dataset_mixer_eval_list", "d.jsonl", "8")
    config = _config(*flags)
    assert (config.sampling.top_p, config.sampling.top_k, config.evaluation.top_p) == (0.95, 1024, 0.95)
    assert any("the 1024 likeliest" in note for note in _translate(*flags).notes)
    assert _config(*flags, "--eval_top_p", "1").evaluation.top_p == 1
    assert (_config().sampling.top_p, _config().sampling.top_k) == (1, 0)
