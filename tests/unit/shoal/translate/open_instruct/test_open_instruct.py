"""Tests of the translation of open-instruct's launch scripts and flags."""

import re
import shlex
from pathlib import Path

import pytest

from shoal.chat_templates import template_text
from shoal.config import RunConfig
from shoal.errors import InvalidArgument
from shoal.translate import Translation, translate_arguments
from tests.golden import document
from tests.support.translations import parsed, translate_file, values_at

MODEL = ("--model_name_or_path", "m")


def _translate(*flags: str, **options: tuple[str, ...]) -> Translation:
    return translate_arguments("open-instruct", [*MODEL, *flags], **options)


def _config(*flags: str) -> RunConfig:
    return parsed(_translate(*flags))


def _script(folder: Path, text: str) -> Translation:
    return translate_file("open-instruct", folder / "run.sh", text)


def _refusals(*flags: str) -> dict[str, str]:
    return {refusal.name: refusal.reason for refusal in _translate(*flags).blocking}


CODE, FORM, JUDGE = "reward.verifiers.", "reward.format.", "reward.judge."
EVAL, TEST, KEPT = "evaluation.", "correction.filters.0.", "checkpoint."
SLOW = "--code_max_execution_time 6 --code_pass_rate_reward_threshold 0.99"
DATA = "--dataset_mixer_eval_list d.jsonl 8"
DECAY, ON_ALL = "--weight_decay 0.1", "--set_weight_decay_on_bias_and_norm"
NOT_ON_ALL = {"learner.weight_decay": 0.01, "learner.weight_decay_on_bias_and_norm": True}
TOP_P = f"--vllm_top_p 0.95 {DATA}"
PER_RANK = "--local_rollout_batch_size 8 --actor_num_gpus_per_node 6 --number_samples_per_prompt 4"
QWEN = "--llm_judge_model hosted_vllm/Qwen/Qwen3-32B --llm_judge_timeout 600"
ON_SERVER = "--llm_judge_model gpt-4o --HOSTED_VLLM_API_BASE http://judge:8000/v1"


def _mask(statistic: str, level: str, low: float | None, only_harmful: bool) -> dict[str, object]:
    """A test that drops no tokens from the divisor, as open-instruct keeps them there."""
    fields = {"statistic": statistic, "level": level, "low": low, "high": 5.0, "only_harmful": only_harmful}
    return {f"{TEST}{name}": value for name, value in (fields | {"reject": False}).items()}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        # The defaults in the code of open-instruct, which always checkpoints activations.
        ("", {"advantage.baseline": "group_mean", "advantage.scale": "none", "learner.gradient_checkpointing": True}),
        ("", {"loss.objective": "ppo_clip", "loss.clip_low": 0.2, "loss.clip_high": 0.272}),
        ("", {"loss.baseline": "proximal", "loss.aggregation": "token-mean"}),
        ("", {"kl.coef": 0.05, "kl.estimator": "k3", "kl.input_clamp": 40.0}),
        ("", {"correction.weight": "token", "correction.weight_low": None, "correction.weight_high": 2}),
        ("", {"grpo.max_staleness": 8, "grpo.group_size": 4, "grpo.groups_per_step": 16, "run.num_steps": 1562}),
        ("", {"learner.learning_rate": 2e-5, "learner.lr_scheduler": "linear", "learner.adam_beta2": 0.999}),
        ("", {"learner.max_grad_norm": 1.0, "run.seed": 42, "data.sources.0.weight": 10.0}),
        ("", {f"{JUDGE}model": "", "sampling.stop_strings": [], "sampling.top_p": 1, "sampling.top_k": 0}),
        ("", {"weights.inflight_updates": True, "model.trust_remote_code": False, f"{KEPT}export_every_steps": 200}),
        ("--inflight_updates false", {"weights.inflight_updates": False}),
        ("--trust_remote_code", {"model.trust_remote_code": True}),
        # What its code does with weight decay, not what its flag says.
        ("", {"learner.weight_decay": 0}),
        *((flags, {"learner.weight_decay": 0.1}) for flags in (DECAY, f"{DECAY} {ON_ALL}")),
        *((flags, {"learner.weight_decay_on_bias_and_norm": False}) for flags in (DECAY, f"{DECAY} {ON_ALL}")),
        *((flags, NOT_ON_ALL) for flags in (f"{DECAY} {ON_ALL} false", f"{ON_ALL} false")),
        ("--advantage_normalization_type standard", {"advantage.scale": "group_std", "advantage.std_ddof": 0}),
        ("--advantage_normalization_type standard", {"advantage.std_eps": 1e-8}),
        ("--rho_mask_lower_bound 0.5 --rho_mask_upper_bound 5", _mask("ratio", "token", 0.5, False)),
        ("--rho_mask_upper_bound 5 --rho_mask_sequence_level", _mask("ratio", "sequence_mean", None, False)),
        ("--rho_mask_upper_bound 5 --rho_mask_tv_divergence true", _mask("tv", "sequence_mean", None, True)),
        ("--stop_strings </answer>", {"sampling.stop_strings": ["</answer>"]}),
        ("--stop_strings '[the end]' 'a, b'", {"sampling.stop_strings": ["[the end]", "a, b"]}),
        ("--chat_template_name olmo_thinker_rlzero", {"model.chat_template": "answer_line"}),
        ("--chat_template_name zephyr", {"model.chat_template": "zephyr"}),
        # The format reward gates unless it is additive.
        ("--apply_r1_style_format_reward true", {f"{FORM}kind": "r1", f"{FORM}mode": "gate", f"{FORM}value": 1.0}),
        (
            "--apply_r1_style_format_reward --additive_format_reward true --r1_style_format_reward 0.5",
            {f"{FORM}kind": "r1", f"{FORM}mode": "add", f"{FORM}value": 0.5},
        ),
        ("--additive_format_reward true", {f"{FORM}kind": "none"}),
        ("--non_stop_penalty --non_stop_penalty_value -1", {"reward.non_stop_penalty": -1}),
        ("--non_stop_penalty true", {"reward.non_stop_penalty": 0}),
        ("--non_stop_penalty_value -1", {"reward.non_stop_penalty": None}),
        ("--remap_verifier Math=strict_math", {"reward.remap": {"math": "strict_math"}}),
        (
            "--max_length_verifier_max_length 512",
            {f"{CODE}max_length.max_length_tokens": 512, f"{CODE}up_to_max_length.max_length_tokens": 512},
        ),
        ("--apply_verifiable_reward false", {"reward.apply_verifiable_reward": False}),
        # All tests of a program have the time that open-instruct gives them.
        (SLOW, {f"{CODE}code.timeout_s": 6.0, f"{CODE}code.total_timeout_s": 60.0}),
        (SLOW, {f"{CODE}code_stdio.timeout_s": 6.0, f"{CODE}code_stdio.total_timeout_s": 60.0}),
        (SLOW, {f"{CODE}code.pass_rate_threshold": 0.99, f"{CODE}code_stdio.pass_rate_threshold": 0.99}),
        ("--code_api_url http://localhost:1234/test_program", {f"{CODE}code.total_timeout_s": 30.0}),
        ("--code_max_execution_time 60", {f"{CODE}code.total_timeout_s": 300.0}),
        ("--code_max_execution_time 12", {f"{CODE}code.total_timeout_s": 120.0, "reward.timeout_s": 122.0}),
        ("--code_apply_perf_penalty", {f"{CODE}code.reward_speed": True, f"{CODE}code_stdio.reward_speed": True}),
        (QWEN, {f"{JUDGE}model": "Qwen/Qwen3-32B", f"{JUDGE}timeout_s": 600, f"{JUDGE}total_timeout_s": 600}),
        (QWEN, {f"{JUDGE}max_tokens": 2048, f"{JUDGE}temperature": 1.0, f"{JUDGE}base_url": ""}),
        (ON_SERVER, {f"{JUDGE}base_url": ""}),
        ("--single_gpu_mode --vllm_gpu_memory_utilization 0.3", {"generator.gpu_memory_utilization": 0.3}),
        ("--single_gpu_mode --vllm_gpu_memory_utilization 0.9", {"generator.gpu_memory_utilization": 0.4}),
        # Batches that an earlier trainer counted per rank are multiplied: 10 steps of 2 mini-batches.
        (
            f"{PER_RANK} --local_mini_batch_size 16 --total_episodes 1920 --warmup_ratio 0.5",
            {
                "grpo.groups_per_step": 48, "grpo.group_size": 4, "grpo.num_mini_batches": 2, "run.num_steps": 10,
                "learner.warmup_steps": 10,
            },
        ),
        (f"--temperature 0.9 {DATA}", {f"{EVAL}temperature": 0.9}),
        (f"--temperature 0.9 {DATA} --eval_temperature 0.6", {f"{EVAL}temperature": 0.6}),
        ("--total_episodes 6400 --warm_up_steps 7", {"learner.warmup_steps": 7}),
        ("--total_episodes 6400 --warm_up_steps 7 --warmup_ratio 0.1", {"learner.warmup_steps": 10}),
        # Exports and checkpoints have the cadence of the source.
        ("--save_freq 40 --keep_last_n_checkpoints 5", {f"{KEPT}export_every_steps": 40, f"{KEPT}export_keep_last": 5}),
        ("--checkpoint_state_freq 20 --keep_last_n_checkpoints 5", {f"{KEPT}every_steps": 20, f"{KEPT}keep_last": 5}),
        (
            "--save_freq -1 --keep_last_n_checkpoints -1",
            {f"{KEPT}export_every_steps": 0, f"{KEPT}export_keep_last": 0, f"{KEPT}keep_last": 1_000_000},
        ),
        ("--gs_bucket_path gs://bucket/models", {f"{KEPT}mirror": "gs://bucket/models"}),
        ("--gs_bucket_path gs://b/m --gs_checkpoint_state_dir gs://b/s", {f"{KEPT}mirror": "gs://b/s"}),
        ("--fsdp_shard_degree 8 --num_learners_per_node 8", {"learner.zero_stage": 3}),
        ("--fsdp_shard_degree 1", {"learner.zero_stage": 0}),
        ("--fsdp_shard_degree 8 --deepspeed_stage 2", {"learner.zero_stage": 2}),
        ("--use_peft true --lora_r 8", {"learner.lora.rank": 0}),
        # A smaller support is bounded, and used in evaluation too.
        (TOP_P, {"sampling.top_p": 0.95, "sampling.top_k": 1024, f"{EVAL}top_p": 0.95}),
        (f"{TOP_P} --eval_top_p 1", {f"{EVAL}top_p": 1}),
        # Most scripts name the same data for both, so held-out evaluation would have no questions left.
        (DATA, {f"{EVAL}held_out": False, f"{EVAL}num_prompts": 8}),
        # The earlier trainer had stop tokens.
        ("--stop_token eos", {"sampling.stop_strings": []}),
    ],
)  # fmt: skip
def test_flags_become_fields(flags: str, expected: dict[str, object]) -> None:
    assert values_at(_config(*shlex.split(flags)), expected) == expected


@pytest.mark.parametrize(
    ("flags", "said", "number"),
    [
        ("--chat_template_name r1_simple_chat_postpend_think", "words the instruction differently", 1),
        ("--chat_template_name tulu", "words the instruction differently", 0),
        (ON_SERVER, "HOSTED_VLLM_API_BASE = http://judge:8000/v1:", 1),
        ("--fsdp_num_replicas 1", "ZeRO 3", 1),
        ("--activation_memory_budget 0.5", "learner.gradient_checkpointing", 1),
        ("--deepspeed_checkpoint_load_universal true", "number of ranks", 1),
        ("--backend_timeout 1200", "weights.timeout_s", 1),
        ("--vllm_sync_backend gloo", "weights.backend", 1),
        ("--gather_whole_model false", "a bucket at a time", 1),
        ("--single_gpu_mode --vllm_gpu_memory_utilization 0.9", "no memory", 1),
        ("--trust_remote_code", "Python code", 1),
        ("--warm_up_steps 7 --warmup_ratio 0.1", "warm_up_steps = 7: warmup_ratio", 1),
        ("--use_peft true --lora_r 8", "never reads it", 2),
        (TOP_P, "the 1024 likeliest", 1),
    ],
)
def test_what_a_flag_does_not_do_here_is_noted(flags: str, said: str, number: int) -> None:
    translation = _translate(*shlex.split(flags))
    assert not translation.blocking, [str(refusal) for refusal in translation.blocking]
    assert sum(said in note for note in translation.notes) == number, translation.notes


def test_the_address_of_a_judge_is_taken_from_overrides() -> None:
    address = ("reward.judge.base_url=http://h/v1", "reward.judge.max_tokens=99")
    judge = parsed(_translate(*QWEN.split(), overrides=address)).reward.judge
    assert (judge.base_url, judge.model, judge.max_tokens) == ("http://h/v1", "Qwen/Qwen3-32B", 99)


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
        (["--dataset_mixer_list", "a", "1.0", "b"], "dataset_mixer_list", "must alternate names"),
        (["--total_episodes", "10"], "config", "at least the 64 completions of one step"),
        (["--tools", "search"], "tools", "supports only python"),
        (["--num_learner_per_node", "2"], "num_learner_per_node", "did you mean num_learners_per_node"),
        (["--learning_rate", "fast"], "learning_rate", "a number is expected"),
        (["--stop_strings"], "stop_strings", "a list of texts is expected"),
        (["--remap_verifier", "math"], "remap_verifier", "old=new"),
        (["--apply_evolving_rubric_reward"], "apply_evolving_rubric_reward", ""),
        (["--opd_teacher_model_name_or_path", "t"], "opd_teacher_model_name_or_path", "distillation"),
        (["--opd_pure", "--opd_kl_coef", "1"], "opd_pure", ""),
        ([*PER_RANK.split(), "--local_mini_batch_size", "5"], "local_mini_batch_size", ""),
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


def test_every_chat_template_of_open_instruct_is_known_or_refused_with_its_reason() -> None:
    text = document("reference/open-instruct.md").split("Chat templates (21): ")[1].split(". Tokenizer")[0]
    names = re.findall(r"(?:^|, )([a-z0-9_]+)", re.sub(r"\([^)]*\)", "", text))
    assert len(names) == 21, names
    for name in names:
        reason = _refusals("--chat_template_name", name).get("chat_template_name", "")
        assert "no template of this name" not in reason, name


def test_a_chat_template_without_a_counterpart_is_refused_unless_one_is_configured() -> None:
    assert "only Ai2's models" in _refusals("--chat_template_name", "olmo_thinker")["chat_template_name"]
    assert "silently uses the tokenizer's" in _refusals("--chat_template_name", "olmo123")["chat_template_name"]
    assert "is unknown here" in _refusals("--add_bos")["add_bos"]
    overrides = ("model.chat_template={{ messages[0].content }}",)
    assert not _translate("--chat_template_name", "olmo_thinker", overrides=overrides).blocking


def test_every_line_names_its_origin() -> None:
    toml = _translate("--beta", "0.01").toml
    assert "# beta = 0.01" in toml
    assert "# clip_higher = 0.272 (" in toml


def test_a_launch_script_with_a_launcher_is_read(tmp_path: Path) -> None:
    script = (
        "MIX='a/b 1.0 c/d 200'\nNAME=${NAME:-run_one}\npython mason.py --cluster x --gpus 8 -- source y.sh \\&\\& "
        "uv run python open_instruct/grpo_fast.py \\\n  --exp_name $NAME --num_learners_per_node 4 4 \\\n"
        "  --model_name_or_path m --dataset_mixer_list $MIX --total_episodes $((5 * 64)) --deepspeed_stage 2 \\\n"
        "  # --beta 0.3 \\\n"
    )
    translation = _script(tmp_path, script)
    config = parsed(translation)
    assert config.run.name == "run_one" and config.run.num_steps == 5
    assert config.launch.num_learner_ranks == 8 and config.kl.coef == 0.05
    assert [(source.dataset, source.count) for source in config.data.sources] == [("a/b", None), ("c/d", 200)]
    assert any("--cluster, --gpus" in note for note in translation.notes)


def test_a_variable_that_the_script_does_not_set_is_named(tmp_path: Path) -> None:
    script = "python grpo_fast.py --model_name_or_path m --dataset_mixer_list $NOWHERE --seed 1\n"
    (refusal,) = _script(tmp_path, script).blocking
    assert refusal.name == "dataset_mixer_list" and "$NOWHERE" in refusal.reason


def test_a_script_without_a_known_trainer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="starts no known trainer"):
        _script(tmp_path, "python finetune.py --x 1\n")
    with pytest.raises(InvalidArgument, match=r"qwen3_4b\.sh"):
        _script(tmp_path, 'bash "qwen3_4b.sh" --clip_higher 0.3\n')


def test_a_script_that_starts_trainers_with_the_same_settings_is_read_as_one(tmp_path: Path) -> None:
    script = "ALL=(--model_name_or_path m --beta 0.3)\npython grpo.py ${ALL[@]}\npython grpo_fast.py ${ALL[@]}\n"
    assert parsed(_script(tmp_path, script)).kl.coef == 0.3
    with pytest.raises(InvalidArgument, match=" 3 trainers"):
        _script(tmp_path, script + "python grpo_fast.py ${ALL[@]} --seed 2\n")


def test_a_script_that_resumes_its_run_is_read_with_the_last_length(tmp_path: Path) -> None:
    start = "python grpo_fast.py --model_name_or_path m --total_episodes"
    translation = _script(tmp_path, f"{start} 640 --beta 0.3\n{start} 1280 --beta 0.3\n")
    assert parsed(translation).run.total_episodes == 1280
    assert any("another length" in note for note in translation.notes)


def test_a_script_with_mock_data_says_that_it_would_not_read_its_own(tmp_path: Path) -> None:
    translation = _script(tmp_path, "python mock_data_grpo_fast.py --model_name_or_path m\n")
    assert translation.toml and any("random data" in note for note in translation.notes)


def test_a_number_of_engines_that_only_a_run_could_show_is_left_to_the_launch(tmp_path: Path) -> None:
    script = "python grpo_fast.py --model_name_or_path m --vllm_num_engines $ENGINES --beta $BETA\n"
    translation = _script(tmp_path, script)
    assert [refusal.name for refusal in translation.blocking] == ["beta"]
    assert any("set launch.num_generators if" in note for note in translation.notes), translation.notes


def test_the_example_of_the_experiment_config_is_read_as_python(tmp_path: Path) -> None:
    script = (
        "from open_instruct.grpo_utils import ExperimentConfig, GRPOLossType\nconfig = ExperimentConfig(\n"
        "    exp_name='olmo_7b_gsm8k', lr_scheduler_type='cosine', warmup_ratio=0.03, clip_higher=0.28,\n"
        "    loss_fn=GRPOLossType.dapo, num_mini_batches=2, total_episodes=50000, deepspeed_stage=2,\n"
        "    num_learners_per_node=[4, 4])\n"
    )
    path = tmp_path / "example.py"
    (refusal,) = translate_file("open-instruct", path, script).blocking
    assert refusal.name == "model_name_or_path"
    config = parsed(translate_file("open-instruct", path, script, overrides=["model.path=m"]))
    steps = 50_000 // 64
    assert (config.run.num_steps, config.learner.warmup_steps) == (steps, int(steps * 2 * 0.03))
    assert config.launch.num_learner_ranks == 8 and config.loss.clip_high == 0.28


def test_a_judge_that_alone_gives_rewards_is_not_left_out() -> None:
    flags = ("--apply_llm_verifier_reward", "true")
    assert _config(*flags).reward.apply_verifiable_reward
    alone = (*flags, "--apply_verifiable_reward", "false")
    assert list(_refusals(*alone)) == ["apply_llm_verifier_reward"]
    assert not _translate(*alone, overrides=("reward.apply_verifiable_reward=true",)).blocking


@pytest.mark.parametrize("how", ["-- python mason.py --env A=1 --env HOSTED_VLLM_API_BASE=$URL --", "export"])
def test_a_judge_on_a_server_has_the_address_that_the_script_gives_it(tmp_path: Path, how: str) -> None:
    export = "export HOSTED_VLLM_API_BASE=$URL" if how == "export" else ""
    launcher = "" if how == "export" else how.removeprefix("-- ")
    flags = "--model_name_or_path m --llm_judge_model hosted_vllm/Qwen/Qwen3-32B"
    script = f"URL=http://judge:8000/v1\n{export}\n{launcher} python open_instruct/grpo_fast.py {flags}\n"
    judge = parsed(_script(tmp_path, script)).reward.judge
    assert (judge.base_url, judge.model) == ("http://judge:8000/v1", "Qwen/Qwen3-32B")


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


def test_a_planned_feature_is_not_yet_available() -> None:
    refusals = _refusals("--opd_enabled", "true", "--apply_adaptive_rubric_reward", "true")
    assert set(refusals) == {"opd_enabled", "apply_adaptive_rubric_reward"}
    assert all(reason.startswith("not yet available: ") for reason in refusals.values())


def test_an_earlier_trainer_without_packing_has_the_defaults_nearest_to_its_time() -> None:
    flags = ("--local_rollout_batch_size", "8", "--max_prompt_token_length", "2048", "--response_length", "2048")
    config = _config(*flags)
    assert config.learner.pack_tokens == 4096
    assert (config.grpo.max_staleness, config.loss.clip_high, config.correction.weight) == (1, 0.2, "none")
    now = translate_arguments("open-instruct", [*MODEL, *flags], as_of="2026-08")
    assert parsed(now).loss.clip_high == 0.272, "a month that is given decides"


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


def test_quotes_for_the_shell_of_a_launcher_are_no_part_of_a_value(tmp_path: Path) -> None:
    trainer = "python grpo_fast.py --model_name_or_path m --stop_strings '\"</answer>\"'\n"
    config = parsed(_script(tmp_path, f"python mason.py --gpus 8 -- source x.sh \\&\\& {trainer}"))
    assert config.sampling.stop_strings == ["</answer>"]
    config = parsed(_script(tmp_path, trainer))
    assert config.sampling.stop_strings == ['"</answer>"'], "without a launcher there is one shell"
