"""Every field of open-instruct's own configuration classes is accounted for."""

import pytest

from shoal.translate import SYSTEMS
from shoal.translate.shared.field import NOT_YET, Fate

FIELDS = {
    "ExperimentConfig": """
        exp_name run_name seed data_loader_seed
    """,
    "TrainingConfig": """
        num_epochs per_device_train_batch_size gradient_accumulation_steps learning_rate warmup_ratio weight_decay
        max_grad_norm max_seq_length lr_scheduler_type max_train_steps activation_memory_budget
        activation_checkpointing_mode activation_checkpointing_modules compile_model fused_optimizer cp_degree
        cp_strategy
    """,
    "LoggingConfig": """
        logging_steps with_tracking wandb_project wandb_entity report_to wandb_group_name
    """,
    "CheckpointConfig": """
        output_dir checkpointing_steps ephemeral_save_interval keep_last_n_checkpoints resume_from_checkpoint
    """,
    "GRPOExperimentConfig": """
        set_weight_decay_on_bias_and_norm total_episodes world_size num_training_steps local_eval_every save_freq
        backend_timeout model_dtype num_mini_batches beta clip_lower clip_higher use_rho_correction
        rho_clamp_lower_bound rho_clamp_upper_bound rho_mask_lower_bound rho_mask_upper_bound
        rho_mask_sequence_level rho_mask_tv_divergence kl_estimator loss_denominator alpha ref_policy_update_freq
        load_ref_policy loss_fn record_entropy use_vllm_logprobs single_gpu_mode num_learners_per_node num_nodes
        sequence_parallel_size deepspeed_stage deepspeed_zpg deepspeed_offload_param deepspeed_offload_optimizer
        deepspeed_checkpoint_load_universal gather_whole_model fsdp_shard_degree fsdp_num_replicas
        enable_queue_dashboard queue_dashboard_port verbose push_to_hub hf_entity hf_repo_id hf_repo_revision
        hf_repo_url cache_dataset_only checkpoint_state_freq checkpoint_state_dir gs_checkpoint_state_dir
        try_launch_beaker_eval_jobs_on_weka try_auto_save_to_beaker gs_bucket_path oe_eval_tasks oe_eval_max_length
        oe_eval_beaker_image oe_eval_gpu_multiplier eval_priority eval_workspace send_slack_alerts eval_on_step_0
        eval_pass_at_k eval_top_p
    """,
    "StreamingDataLoaderConfig": """
        max_prompt_token_length response_length pack_length async_steps num_samples_per_prompt_rollout
        num_unique_prompts_rollout active_sampling filter_zero_std_samples no_resampling_pass_rate
        advantage_normalization_type mask_truncated_completions mask_tool_use dataset_mixer_list
        dataset_mixer_eval_list dataset_mixer_list_splits dataset_mixer_eval_list_splits dataset_transform_fn
        dataset_cache_mode dataset_local_cache_dir dataset_config_hash dataset_config_eval_hash dataset_skip_cache
        system_prompt_override_file temperature stop_strings inflight_updates eval_response_length
        apply_r1_style_format_reward r1_style_format_reward additive_format_reward apply_verifiable_reward
        verification_reward remap_verifier reward_aggregator llm_judge_model llm_judge_max_tokens
        llm_judge_max_context_length llm_judge_temperature llm_judge_timeout code_api_url code_max_execution_time
        code_pass_rate_reward_threshold code_apply_perf_penalty max_length_verifier_max_length non_stop_penalty
        non_stop_penalty_value apply_evolving_rubric_reward max_active_rubrics cache_evolving_rubric_data_dir
        save_traces rollouts_save_path max_possible_score
    """,
    "VLLMConfig": """
        vllm_num_engines vllm_tensor_parallel_size vllm_enforce_eager vllm_attention_backend vllm_sync_backend
        vllm_gpu_memory_utilization vllm_enable_prefix_caching vllm_top_p
    """,
    "ModelConfig": """
        model_name_or_path model_revision dtype attn_implementation use_cache gradient_checkpointing use_peft lora_r
        lora_alpha lora_dropout lora_target_modules lora_modules_to_save lora_task_type load_in_8bit load_in_4bit
        bnb_4bit_quant_type use_bnb_nested_quant
    """,
    "TokenizerConfig": """
        tokenizer_name_or_path tokenizer_revision trust_remote_code use_fast chat_template_name add_bos
        get_tokenizer_fn tokenizer_files_hash use_slow_tokenizer tokenizer_name ground_truths_key sft_messages_key
    """,
    "EnvsConfig": """
        tools tool_call_names tool_configs tool_parser_type max_steps per_turn_max_tokens only_reward_good_outputs
        pass_tools_to_chat_template pool_size
    """,
}
"""The fields of the classes that its trainers parse, in August 2026."""


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_is_mapped_noted_outside_not_yet_or_refused_with_a_reason(name: str) -> None:
    rows = SYSTEMS["open-instruct"].rows
    fields = FIELDS[name].split()
    assert len(fields) == len(set(fields)) and not set(fields) - rows.keys(), set(fields) - rows.keys()
    for field in fields:
        row = rows[field]
        reason = NOT_YET[row.why] if row.fate is Fate.NOT_YET else row.why
        assert row.to or reason, f"{field} is {row.fate}, without a field of Shoal's and without a reason"


def test_no_field_of_a_class_is_lost_from_the_list() -> None:
    assert sum(len(fields.split()) for fields in FIELDS.values()) == 194
