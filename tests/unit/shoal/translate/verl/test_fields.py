"""Tests that every key of the configuration that verl 0.9.1 publishes is accounted for."""

import pytest

from shoal.translate import SYSTEMS
from shoal.translate.shared.field import Field

# The keys of ppo_trainer.yaml for FSDP, Megatron, veOmni and torchtitan: "path: keys".
KEYS = """
actor_rollout_ref: hybrid_engine nccl_timeout
actor_rollout_ref.actor: calculate_entropy calculate_sum_pi_squared clip_ratio clip_ratio_c clip_ratio_high
  clip_ratio_low data_loader_seed entropy_checkpointing entropy_coeff entropy_from_logits_chunk_size
  entropy_from_logits_with_chunking freeze_vision_tower grad_clip kl_loss_coef kl_loss_type loss_agg_mode
  loss_scale_factor pad_to_length ppo_epochs ppo_max_token_len_per_gpu ppo_micro_batch_size
  ppo_micro_batch_size_per_gpu ppo_mini_batch_size rollout_n shuffle strategy tau_neg tau_pos
  ulysses_sequence_parallel_size use_dynamic_bsz use_fused_kernels use_kl_loss use_prefix_grouper use_remove_padding
  use_torch_compile
actor_rollout_ref.actor.checkpoint: async_save load_contents mbridge_config save_contents strict
actor_rollout_ref.actor.optim: betas clip_grad decay_type eps exp_avg_dtype exp_avg_sq_dtype lr lr_decay_ratio
  lr_decay_steps lr_decay_style lr_min lr_scheduler_type lr_start lr_warmup_init lr_warmup_steps
  lr_warmup_steps_ratio lr_wsd_decay_steps lr_wsd_decay_style main_grads_dtype min_lr min_lr_factor min_lr_ratio
  muon_coefficient_type muon_extra_scale_factor muon_fp32_matmul_prec muon_match_adamw_update_rms muon_momentum
  muon_nesterov muon_num_ns_steps muon_scalar_optimizer muon_scale_mode muon_split_qkv muon_tp_mode name num_cycles
  optimizer optimizer_impl override_optimizer_config total_training_steps use_checkpoint_opt_param_scheduler
  use_layer_wise_distributed_optimizer use_precision_aware_optimizer warmup_style weight_decay
  weight_decay_incr_style zero_indexed_step
actor_rollout_ref.actor.policy_loss: clip_cov_lb clip_cov_ratio clip_cov_ub dro_beta kl_cov_ratio loss_mode
  ppo_kl_coef
actor_rollout_ref.actor.qat: activation_observer enable group_size ignore_patterns mode quantization_config_path
actor_rollout_ref.model: custom_chat_template enable_activation_offload enable_gradient_checkpointing
  exclude_modules external_lib hf_config_path lora_adapter_path lora_alpha lora_rank override_config path
  target_modules tokenizer_path trust_remote_code use_fused_kernels use_liger use_remove_padding use_shm
actor_rollout_ref.model.fused_kernel_options: impl_backend
actor_rollout_ref.model.lora: a2a_experimental adapter_path alpha dropout dropout_position dtype exclude_modules
  freeze_language_model freeze_vision_model freeze_vision_projection lora_A_init_method lora_B_init_method merge
  rank target_modules type
actor_rollout_ref.model.tiled_mlp: enabled num_shards
actor_rollout_ref.rollout: calculate_log_probs cudagraph_capture_sizes data_parallel_size disable_log_stats
  do_sample dtype enable_chunked_prefill enable_prefix_caching enable_rollout_routing_replay enforce_eager
  expert_parallel_size free_cache_engine full_determinism gpu_memory_utilization ignore_eos layered_summon
  load_format log_prob_max_token_len_per_gpu log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu
  log_prob_use_dynamic_bsz logprobs_mode max_model_len max_num_batched_tokens max_num_seqs mode
  moe_load_balance_metrics_interval mtp multi_stage_wake_up n n_gpus_per_node name nnodes over_sample_rate
  pipeline_model_parallel_size prompt_length qat quantization quantization_config_file response_length
  router_config_path scheduling_policy seed skip_tokenizer_init temperature tensor_model_parallel_size top_k top_p
actor_rollout_ref.rollout.agent: agent_loop_config_path default_agent_loop num_workers
actor_rollout_ref.rollout.agent.custom_async_server: name path
actor_rollout_ref.rollout.disaggregation: bootstrap_port decode_replicas decode_tensor_model_parallel_size enabled
  ib_device prefill_replicas transfer_backend
actor_rollout_ref.rollout.engine_kwargs: sglang trtllm vllm
actor_rollout_ref.rollout.multi_turn: enable format function_tool_path max_assistant_turns max_parallel_calls
  max_tool_response_length max_user_turns num_repeat_rollouts tokenization_sanity_check_mode tool_config_path
  tool_response_truncate_side use_inference_chat_template
actor_rollout_ref.rollout.prometheus: enable file port served_model_name
actor_rollout_ref.rollout.trace: backend experiment_name max_samples_per_step_per_worker project_name token2text
actor_rollout_ref.rollout.val_kwargs: do_sample n temperature top_k top_p
algorithm: adv_estimator gamma kl_penalty lam norm_adv_by_std_in_grpo use_kl_in_reward use_pf_ppo
algorithm.filter_groups: enable max_inflight_gen_batches max_num_gen_batches metric
algorithm.kl_ctrl: horizon kl_coef target_kl type
algorithm.pf_ppo: reweight_method weight_pow
algorithm.rollout_correction: bypass_mode loss_type rollout_is rollout_is_batch_normalize rollout_is_threshold
  rollout_rs rollout_rs_threshold
custom_reward_function: name path
data: apply_chat_template_kwargs audio_key dataloader_num_workers filter_overlong_prompts
  filter_overlong_prompts_workers function_tool_path gen_batch_size image_key image_patch_size max_prompt_length
  max_response_length mm_processor_kwargs prompt_key return_full_prompt return_multi_modal_inputs return_raw_chat
  return_raw_input_ids reward_fn_key seed shuffle tokenizer tool_config_path train_batch_size train_files
  train_max_samples truncation trust_remote_code use_shm val_batch_size val_files val_max_samples validation_shuffle
  video_key
data.custom_cls: name path
reward: num_workers
reward.custom_reward_function: name path
reward.reward_manager: name source
reward.reward_manager.module: name path
reward.sandbox_fusion: max_concurrent memory_limit_mb url
reward_model: enable enable_resource_pool n_gpus_per_node nnodes num_workers reward_loop_class_name
  reward_loop_module_path reward_loop_source reward_manager
reward_model.model: external_lib path trust_remote_code
sandbox_fusion: max_concurrent memory_limit_mb url
skip.async_rollout: action dump_dir enable steps
skip.rollout: action dump_dir enable steps
skip.rollout_tq: action dump_dir enable steps
trainer: balance_batch checkpoint_callback_class critic_warmup default_hdfs_dir default_local_dir
  del_local_ckpt_after_load device esi_redundant_time experiment_name log_val_generations logger
  max_actor_ckpt_to_keep max_critic_ckpt_to_keep n_gpus_per_node nnodes project_name
  ray_wait_register_center_timeout resume_from_path resume_mode rollout_data_dir save_freq test_freq total_epochs
  total_training_steps use_v1 val_before_train val_only validation_data_dir
trainer.v1: sync trainer_mode
trainer.v1.colocate_async: num_warmup_batches
trainer.v1.sampler: max_off_policy_strategy max_off_policy_threshold sampler_kwargs sync_refill_failed_groups
trainer.v1.sampler.custom_sampler: name path
trainer.v1.separate_async: num_warmup_batches parameter_sync_step
trainer.v1.separate_async.hybrid_rollout: adaptive_switch_threshold enable_switch switch_cost_window_size
  switch_threshold_ratio switch_threshold_release_steps switch_threshold_step_down switch_threshold_step_up
"""
FAMILIES = """
critic actor_rollout_ref.ref reward.reward_model.rollout reward_model.rollout distillation transfer_queue
actor_rollout_ref.actor.megatron actor_rollout_ref.actor.fsdp_config actor_rollout_ref.actor.veomni
actor_rollout_ref.actor.torchtitan actor_rollout_ref.actor.profiler global_profiler
actor_rollout_ref.rollout.profiler actor_rollout_ref.model.mtp actor_rollout_ref.rollout.checkpoint_engine
ray_kwargs
"""


def keys() -> list[str]:
    words = KEYS.split()
    found, path = [], ""
    for word in words:
        if word.endswith(":"):
            path = word.rstrip(":.")
        else:
            found.append(f"{path}.{word}" if path else word)
    return found


def row(name: str) -> Field | None:
    """The row of a field: its own, or that of the narrowest family."""
    verl = SYSTEMS["verl"]
    families = [row for row in verl.table if row.name.endswith(".*") and name.startswith(row.name[:-1])]
    tables = [table for table in verl.tables if name.startswith(f"{table}.")]
    return (
        verl.rows.get(name)
        or next((verl.rows[table] for table in tables), None)
        or max(families, key=lambda row: len(row.name), default=None)
    )


def test_every_key_of_verls_configuration_has_a_row_with_a_target_or_a_reason() -> None:
    assert len(keys()) > 350
    missing = [name for name in keys() if (found := row(name)) is None or not (found.to or found.why)]
    assert missing == []


@pytest.mark.parametrize("family", FAMILIES.split())
def test_a_part_of_verl_that_has_no_counterpart_is_noted_key_by_key(family: str) -> None:
    found = row(f"{family}.some_key")
    assert found is not None and found.why, f"{family}.some_key is unknown"
