"""TRL's GRPOConfig, one row per field: GRPO's fields, and the fields of transformers' TrainingArguments."""

from typing import Any

from shoal.translate.shared.field import (
    Field,
    Unfit,
    accepted,
    composed,
    ignored,
    mapped,
    not_yet,
    outside,
    refused,
    rows,
    text_list,
)

_LOGS = "every run writes metrics.jsonl, and the ledger keeps prompts and completions"
_SERVER = "generators register with the coordinator"
_HUB = "the trained model stays in the run's folder; upload it from there"
TRANSFORMERS = "completions are always sampled by vLLM"
FULL = "Shoal has no such penalty: the engine would sample from another distribution than the learner's policy"
EVALUATION = "evaluation.sources names the held-out questions, and evaluation.every_steps says how often"
REWARDS = (
    "data.sources reward.weights reward.verifiers reward.apply_verifiable_reward reward.format reward.overlong "
    "reward.repetition reward.cosine reward.style reward.custom"
)
HOW = "a detail of how TRL's process computes or prints"
DTYPE = "bf16 decides the learner's type, generator.dtype the engine's"


def _stop_strings(kwargs: Any) -> list[str]:
    """Returns the stop strings in `generation_kwargs`. Whether vLLM includes them in the text changes no token."""
    if not isinstance(kwargs, dict | None):
        raise Unfit("a table of settings is expected")
    others = sorted(set(kwargs or {}) - {"stop", "include_stop_str_in_output"})
    if others:
        raise Unfit(f"only `stop` is translated here: give each other setting as its own field ({', '.join(others)})")
    return text_list((kwargs or {}).get("stop"))


GRPO: list[Field] = rows(
    composed("model_init_kwargs", "table", None, "learner.attention", why="its attn_implementation and revision"),
    composed(
        "trust_remote_code", "flag", False, "model.trust_remote_code", aliases=["from_pretrained.trust_remote_code"]
    ),
    not_yet("router_aux_loss_coef", "number", None, "mixture of experts", accepts=[None, 0.0]),
    accepted("disable_dropout", "flag", False, "", accepts=[True]),
    ignored("cast_lm_head_to_fp32", "log-probabilities are taken from float32 logits"),
    mapped("num_generations", "integer", 8, "grpo.group_size"),
    ignored("num_generations_eval", EVALUATION),
    mapped("max_completion_length", "integer", 512, "sampling.max_completion_tokens"),
    mapped("max_prompt_length", "integer", None, "data.max_prompt_tokens", why="TRL 1.0 has none"),
    ignored("ds3_gather_for_generation", "ZeRO 3 parameters are gathered a bucket at a time"),
    mapped("shuffle_dataset", "flag", True, "data.shuffle"),
    ignored("pad_to_multiple_of", "rows are packed, not padded"),
    ignored("remove_unused_columns", "only the named columns are read"),
    composed(
        "generation_batch_size steps_per_generation", "integer", None, "grpo.groups_per_step grpo.num_mini_batches"
    ),
    mapped("temperature", "number", 1.0, "sampling.temperature"),
    mapped("top_p", "number", 1.0, "sampling.top_p"),
    mapped("top_k", "integer", 0, "sampling.top_k", lambda value: max(0, value or 0)),
    mapped("min_p", "number", None, "sampling.min_p"),
    refused("repetition_penalty", "number", 1.0, FULL, accepts=[1.0]),
    mapped(
        "generation_kwargs",
        "any",
        None,
        "sampling.stop_strings",
        _stop_strings,
        why="only `stop`; the other settings have fields of their own",
    ),
    mapped("chat_template_kwargs", "table", None, "model.chat_template_kwargs", lambda value: value or None),
    ignored(
        "cache_implementation use_transformers_continuous_batching use_transformers_paged "
        "transformers_continuous_batching_config use_vllm vllm_mode vllm_model_impl vllm_enable_sleep_mode "
        "vllm_enable_prefix_caching",
        TRANSFORMERS,
    ),
    refused(
        "vllm_structured_outputs_regex vllm_guided_decoding_regex",
        "text",
        None,
        "constrained sampling does not follow the policy's distribution",
    ),
    ignored(
        "vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port "
        "remote_gen_model_url",
        _SERVER,
    ),
    mapped("vllm_gpu_memory_utilization", "number", 0.3, "generator.gpu_memory_utilization"),
    composed(
        "vllm_max_model_length",
        "integer",
        None,
        "generator.max_model_len data.max_prompt_tokens",
        aliases=["vllm_max_model_len"],
    ),
    mapped("vllm_tensor_parallel_size", "integer", 1, "generator.tensor_parallel_size"),
    composed("beta", "number", 0.0, "kl.coef", why="0.04 in TRL before 0.18"),
    mapped("num_iterations", "integer", 1, "grpo.num_epochs"),
    composed("epsilon", "number", 0.2, "loss.clip_low loss.clip_high"),
    composed("epsilon_high", "number", None, "loss.clip_high loss.cispo_cap"),
    composed("delta", "number", None, "loss.dual_clip"),
    composed("importance_sampling_level", "text", "token", "loss.objective"),
    composed("loss_type", "text", "dapo", "loss.objective loss.aggregation", why="bnpo in TRL before 0.22"),
    mapped("mask_truncated_completions", "flag", False, "grpo.mask_truncated_completions"),
    mapped("top_entropy_quantile", "number", 1.0, "loss.top_entropy_share"),
    mapped("entropy_coef", "number", 0.0, "loss.entropy_coef"),
    refused("use_adaptive_entropy", "flag", False, "the weight of the entropy is fixed: give entropy_coef"),
    ignored(
        "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target",
        "it adapts the weight of the entropy, which is fixed here",
    ),
    composed("sapo_temperature_neg", "number", 1.05, "loss.sapo_tau_negative"),
    composed("sapo_temperature_pos", "number", 1.0, "loss.sapo_tau_positive"),
    composed("vespo_k_pos", "number", 2.0, "loss.vespo_k_positive"),
    composed("vespo_lambda_pos", "number", 3.0, "loss.vespo_lambda_positive"),
    composed("vespo_k_neg", "number", 3.0, "loss.vespo_k_negative"),
    composed("vespo_lambda_neg", "number", 2.0, "loss.vespo_lambda_negative"),
    mapped("off_policy_mask_threshold", "number", None, "loss.off_policy_mask"),
    composed("use_bias_correction_kl", "flag", True, "kl.gradient"),
    composed("reward_weights", "numbers", None, REWARDS, why="weights of reward_funcs, by position"),
    composed("multi_objective_aggregation", "text", "sum_then_normalize", "advantage.per_verifier"),
    composed("scale_rewards", "any", "group", "advantage.scale"),
    composed("sync_ref_model", "flag", False, "kl.reference_update_steps"),
    composed("ref_model_mixup_alpha", "number", 0.6, "kl.reference_alpha"),
    composed("ref_model_sync_steps", "integer", 512, "kl.reference_update_steps"),
    composed("vllm_importance_sampling_correction", "flag", True, "correction.weight"),
    composed("vllm_importance_sampling_mode", "text", "sequence_mask", "correction.weight correction.filters"),
    composed(
        "vllm_importance_sampling_clip_max",
        "number",
        3.0,
        "correction.weight_high",
        aliases=["vllm_importance_sampling_cap"],
    ),
    composed("vllm_importance_sampling_clip_min", "number", None, "correction.weight_low"),
    mapped("max_tool_calling_iterations", "integer", None, "episodes.max_turns"),
    composed("log_completions", "flag", False, "tracking.completions_every_steps"),
    composed("num_completions_to_print", "integer", None, "tracking.num_completions"),
    ignored("log_multimodal log_unique_prompts wandb_log_unique_prompts", _LOGS),
    outside("log_completions_hub_repo", "text", None, _HUB),
    ignored("use_liger_kernel use_liger_loss", HOW),
)

TRAINING: list[Field] = rows(
    composed("report_to", "texts", None, "tracking.wandb tracking.tensorboard tracking.trackio"),
    composed("output_dir", "text", None, "run.name", why="the last part of the path, if run_name is not given"),
    composed("run_name", "text", None, "run.name"),
    composed("per_device_train_batch_size", "integer", 8, "grpo.groups_per_step grpo.num_mini_batches"),
    composed("gradient_accumulation_steps", "integer", 1, "grpo.groups_per_step grpo.num_mini_batches"),
    composed("num_train_epochs", "number", 3.0, "run.total_epochs"),
    composed("max_steps", "integer", -1, "run.num_steps"),
    mapped("learning_rate", "number", 1e-6, "learner.learning_rate"),
    mapped("weight_decay", "number", 0.0, "learner.weight_decay"),
    mapped("adam_beta1", "number", 0.9, "learner.adam_beta1"),
    mapped("adam_beta2", "number", 0.999, "learner.adam_beta2"),
    mapped("adam_epsilon", "number", 1e-8, "learner.adam_eps"),
    mapped("max_grad_norm", "number", 1.0, "learner.max_grad_norm"),
    composed("lr_scheduler_type", "text", "linear", "learner.lr_scheduler"),
    composed("lr_scheduler_kwargs", "table", None, "learner.lr_num_cycles learner.lr_min_ratio learner.lr_power"),
    composed("warmup_steps", "number", 0, "learner.warmup_steps"),
    composed("warmup_ratio", "number", None, "learner.warmup_ratio"),
    composed("optim", "text", "adamw_torch_fused", "learner.fused_adam"),
    mapped("seed", "integer", 42, "run.seed"),
    ignored("data_seed", "the data's order follows run.seed"),
    composed("bf16", "flag", None, "learner.compute_dtype"),
    refused("fp16", "flag", False, "the learner computes in bfloat16 or float32"),
    ignored("tf32", HOW),
    mapped("gradient_checkpointing", "flag", True, "learner.gradient_checkpointing"),
    ignored("gradient_checkpointing_kwargs", HOW),
    composed("save_steps", "number", 500, "checkpoint.every_steps"),
    composed("logging_steps", "number", 10, "tracking.completions_every_steps", why="if log_completions is on"),
    ignored("save_strategy", "checkpoints are written every checkpoint.every_steps, and at the end"),
    mapped("save_total_limit", "integer", None, "checkpoint.keep_last"),
    ignored("save_only_model", "checkpoints hold what a resume needs"),
    refused("deepspeed", "any", None, "set learner.zero_stage and other fields of [learner] instead", accepts=[None]),
    refused("fsdp", "any", None, "the learner uses DeepSpeed: set learner.zero_stage", accepts=[None, "", []]),
    refused("auto_find_batch_size", "flag", False, "Shoal takes the batch sizes as configured"),
    refused("label_smoothing_factor", "number", 0.0, "there are no labels to smooth", accepts=[0.0]),
    refused("fsdp_config", "any", None, "the learner uses DeepSpeed: set learner.zero_stage", accepts=[None, {}]),
    refused("parallelism_config", "any", None, "set learner.sequence_parallel_size instead", accepts=[None]),
    refused("optim_args", "any", None, "give AdamW's settings as fields: adam_beta1, adam_beta2, adam_epsilon"),
    refused("optim_target_modules", "any", None, "one optimizer trains all weights"),
    refused("neftune_noise_alpha", "number", None, "noise would make the learner's policy differ from the engine's"),
    ignored(
        "do_eval bf16_full_eval fp16_full_eval prediction_loss_only eval_do_concat_batches eval_use_gather_object "
        "include_for_metrics batch_eval_metrics greater_is_better eval_strategy evaluation_strategy eval_steps "
        "eval_delay eval_on_start eval_accumulation_steps per_device_eval_batch_size load_best_model_at_end "
        "metric_for_best_model",
        EVALUATION,
    ),
    ignored(
        "logging_dir logging_strategy logging_first_step logging_nan_inf_filter log_level log_level_replica "
        "trackio_bucket_id trackio_static_space_id project trackio_space_id disable_tqdm include_tokens_per_second "
        "include_num_input_tokens_seen",
        _LOGS,
    ),
    ignored(
        "do_train do_predict log_on_each_node save_on_each_node enable_jit_checkpoint accelerator_config "
        "restore_callback_states_from_checkpoint dataloader_multiprocessing_context dataloader_in_order "
        "train_sampling_strategy group_by_length length_column_name ddp_bucket_cap_mb ddp_broadcast_buffers "
        "ddp_static_graph ddp_backend debug skip_memory_metrics local_rank torch_compile_backend torch_compile_mode "
        "liger_kernel_config use_cache label_names save_safetensors dataloader_num_workers dataloader_pin_memory "
        "dataloader_drop_last dataloader_prefetch_factor dataloader_persistent_workers torch_compile "
        "torch_empty_cache_steps ddp_find_unused_parameters ddp_timeout full_determinism use_cpu overwrite_output_dir "
        "resume_from_checkpoint ignore_data_skip average_tokens_across_devices",
        HOW,
    ),
    outside(
        "push_to_hub hub_model_id hub_strategy hub_token hub_private_repo hub_always_push hub_revision "
        "hub_model_revision overwrite_hub_revision push_to_hub_revision callbacks benchmarks",
        "any",
        None,
        _HUB,
    ),
)
