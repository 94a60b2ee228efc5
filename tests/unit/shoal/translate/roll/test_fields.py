"""Tests that every field of ROLL's own configuration classes has a row, by the names in ROLL's code of 2026."""

from typing import Any

import pytest

from shoal.translate import SYSTEMS
from shoal.translate.roll.worker_fields import common
from tests.support.translations import translate_values

ROLL = SYSTEMS["roll"]

_GENERATING = """seed logprobs do_sample temperature top_p top_k num_beams max_length max_new_tokens repetition_penalty
    length_penalty num_return_sequences stop_strings include_stop_str_in_output"""
_DATA = """template domain_interleave_probs preprocessing_num_workers cache_path file_name eval_file_name dataset_type
    enable_thinking rollout_dataloader_num_workers rollout_dataloader_batch_size image_max_pixels image_min_pixels
    video_max_pixels video_min_pixels video_total_pixels video_fps video_max_frames video_resize_chunk_frames
    image_folder video_folder audio_folder custom_data_kwargs_func
    tag id prompt response messages"""
_MODEL = """additional_target autocast_adapter_dtype lora_alpha lora_dropout lora_rank lora_target model_name_or_path
    adapter_name_or_path attn_implementation moe_aux_loss_coef disable_gradient_checkpointing
    gradient_checkpointing_use_reentrant device_map dtype model_type num_labels model_config_kwargs freeze_module_prefix
    ulysses_size vision_dp"""
_TRAINING = """output_dir max_steps num_train_epochs learning_rate lr_scheduler_type weight_decay adam_beta1 adam_beta2
    per_device_train_batch_size gradient_accumulation_steps seed data_seed dataloader_num_workers fp16 bf16 tf32
    warmup_ratio warmup_steps save_hf_model"""
_WORKER = """name worker_cls pg_variant world_size device_mapping num_gpus_per_worker model_update_frequency
    infer_batch_size backend_timeout system_envs topr_positive_weight topr_negative_weight max_concurrency
    use_dynamic_batching_in_train max_tokens_per_microbatch_in_train sequence_length_round_in_train
    use_dynamic_batching_in_infer max_tokens_per_microbatch_in_infer sequence_length_round_in_infer offload_nccl
    use_sequence_packing sequence_packing_args use_remove_padding logits_in_fp32 apply_loss_scale use_logits_chunking
    logits_chunk_size mtp_training_mode checkpoint_config"""
_PIPELINE = """generate_opt_level is_num_return_sequences_expand max_running_requests is_use_additional_prompts
    max_additional_running_prompts user_defined_rollout_loop_cls router_args
    skip_initial_validation
    exp_name seed rpc_timeout output_dir base_dir logging_dir rollout_dump_dir track_with tracker_kwargs dump_run_name
    max_steps save_steps max_ckpt_to_keep logging_steps eval_steps rollout_batch_size val_batch_size local_rank
    resume_from_checkpoint auto_resume checkpoint_config reward_system_config prompt_length response_length
    sequence_length val_prompt_length val_sequence_length profiler_timeline profiler_memory report_length_and_rewards
    is_offload_states is_offload_optimizer_states_in_train_step offload_backend length_profiler_dir profiler_output_dir
    otlp_output_dir system_envs model_update_buffer_size_mb num_nodes num_gpus_per_node model_download_type rollout_mock
    transfer_backend
    pretrain reward_pretrain critic rewards reward_model async_generation_ratio ppo_epochs max_grad_norm l2 lambd gamma
    pg_clip use_pg_clip_range pg_clip_low pg_clip_high value_clip kl_penalty target_kl init_kl_coef kl_horizon
    use_reward_scaling add_len_reward reward_clip use_reward_norm whiten_rewards whiten_advantages advantage_clip
    adv_estimator norm_mean_type norm_std_type add_token_level_kl critic_warmup critic_epochs use_kl_loss kl_loss_coef
    entropy_loss_coef loss_agg_mode dual_clip_loss enable_reference enable_old_logprobs_recompute
    force_disable_old_logprobs_recompute
    train_infer_correction.is_weight.enabled train_infer_correction.is_weight.weight_type
    train_infer_correction.is_weight.upper_bound train_infer_correction.is_weight.detach train_infer_correction.filters
    pure_opd_pipeline_type teacher student_train student_infer is_pure_opd use_opd opsd_mode opsd_solution_key
    opsd_teacher_template opsd_max_solution_length opd_token_kld_clip
    global_template tag_to_template dataset_filter.source dataset_filter.min_difficulty dataset_filter.max_difficulty
    dataset_filter.num_samples vlm_filter num_return_sequences_in_group save_logging_board_dir difficulty_loss_weight
    length_loss_weight postive_loss_coef use_topr_neg_loss_coef use_policy_loss_type use_topr_loss rl_loss_coef
    importance_sampling val_greedy val_n_sample max_len_mask mask_type difficulty_mask balance_length
    minibatch_data_iter_num difficulty_low_threshold difficulty_high_threshold error_max_len_clip
    error_max_len_threshold use_rollout_importance_sampling_ratio rollout_importance_sampling_ratio_upper_bound
    train_infer_ratio_mask train_infer_ratio_threshold_low train_infer_ratio_threshold_high train_infer_diff_mask
    train_infer_diff_threshold_low train_infer_diff_threshold_high train_infer_ratio_seq_mask
    train_infer_ratio_seq_threshold_low train_infer_ratio_seq_threshold_high train_infer_diff_seq_mask
    train_infer_diff_seq_threshold_low train_infer_diff_seq_threshold_high"""
_REWARD = """code_url use_local judge_prompt judge_model_type judge_model_name judge_api_url judge_api_key
    format_pattern reward_type response_length_penalty_coef tag_included query_filter_config response_filter_config
    reward_manager_config"""


def _below(worker: str) -> list[str]:
    """Returns the fields of a worker and of the tables in it."""
    tables = {"model_args": _MODEL, "training_args": _TRAINING, "data_args": _DATA, "generating_args": _GENERATING}
    inner = [f"{worker}.{table}.{name}" for table, names in tables.items() for name in names.split()]
    return [
        *(f"{worker}.{name}" for name in _WORKER.split()),
        *inner,
        f"{worker}.router_replay.mode",
        f"{worker}.strategy_args.strategy_name",
        f"{worker}.strategy_args.strategy_config.tensor_model_parallel_size",
    ]


@pytest.mark.parametrize(
    "names",
    [_PIPELINE.split(), *(_below(worker) for worker in ("actor_train", "actor_infer", "reference", "critic"))],
    ids=["pipeline", "actor_train", "actor_infer", "reference", "critic"],
)
def test_every_field_of_rolls_configuration_classes_has_a_row(names: list[str]) -> None:
    unknown = [name for name in names if not ROLL.knows(name)]
    # The class of a worker has every field, but only actor_train trains, and only actor_infer samples.
    idle = ("actor_train.generating_args.", "actor_infer.training_args.", "actor_train.topr", "actor_infer.topr")
    assert [name for name in unknown if not name.startswith(idle)] == []


@pytest.mark.parametrize("name", [*_REWARD.split(), *_WORKER.split(), "model_args", "data_args", "strategy_args"])
def test_every_field_of_a_reward_worker_is_accounted_for(name: str) -> None:
    values: dict[str, Any] = {"tag_included": ["a"], "worker_cls": "x.MathRuleRewardWorker"}
    translation = translate_values("roll", {"rewards": {"math_rule": values | {name: values.get(name, 1)}}})
    named = [refusal.reason for refusal in translation.refusals if refusal.name == f"rewards.math_rule.{name}"]
    assert not any(reason.startswith("unknown field") for reason in named)
    noted = any(name in note for note in translation.notes)
    assert named or noted or name in values or name == "query_filter_config", f"{name} left no trace"


def test_a_reward_worker_has_every_field_that_all_workers_have() -> None:
    of_all = {row.name.removeprefix("reward.").partition(".")[0] for row in common("reward")}
    values = {"worker_cls": "x.MathRuleRewardWorker", "tag_included": ["a"], **dict.fromkeys(of_all, 1)}
    refused = translate_values("roll", {"rewards": {"math_rule": values}}).blocking
    assert [refusal.name for refusal in refused if refusal.reason.startswith("unknown field")] == []


def test_an_unknown_field_of_a_reward_worker_is_refused() -> None:
    values = {"worker_cls": "x.MathRuleRewardWorker", "tag_included": ["a"], "no_such_field": 3}
    refused = [refusal.name for refusal in translate_values("roll", {"rewards": {"math_rule": values}}).blocking]
    assert "rewards.math_rule.no_such_field" in refused
