"""open-instruct's GRPO flags, one row each, with the defaults of its code, which differ from those in its guide."""

from shoal.translate.open_instruct.reward import JUDGE_ADDRESS
from shoal.translate.shared.field import (
    accepted,
    choice,
    composed,
    each,
    ignored,
    mapped,
    not_yet,
    outside,
    refused,
    rows,
    text_list,
)

_DEAD = "open-instruct parses it and never reads it"
_BEAKER = "Shoal does not launch jobs on Beaker"
_HUB = "the trained model stays in the run's folder; upload it from there"
_WITH_JUDGE = "if an llm_judge flag is given"
_OF_EVOLVING = "an option of apply_evolving_rubric_reward, which is refused"
_ONE_ROW = "gradients do not depend on micro-batches; the learner processes one row at a time"
_OLMO_CORE = "an option of the OLMo-core trainer; "
_RUNTIME = "Shoal computes it, and `shoal config show` prints it"

EXPERIMENT = rows(
    composed("exp_name", "text", "grpo", "run.name", why="with only the characters that a run name may have"),
    ignored("run_name", "open-instruct replaces it by name, seed and time; Shoal makes run ids from name and time"),
    mapped("seed", "integer", 42, "run.seed"),
    ignored("data_loader_seed", _DEAD),
    mapped("num_epochs", "integer", 1, "grpo.num_epochs"),
    ignored("per_device_train_batch_size", _ONE_ROW, aliases=["per_device_eval_batch_size"]),
    ignored("gradient_accumulation_steps", _DEAD),
    mapped("learning_rate", "number", 2e-5, "learner.learning_rate"),
    composed("warmup_ratio", "number", 0.0, "learner.warmup_steps", why="of all optimizer steps, rounded down"),
    composed("warm_up_steps", "integer", 0, "learner.warmup_steps", aliases=["warmup_steps"]),
    composed("weight_decay", "number", 0.0, "learner.weight_decay"),
    mapped("max_grad_norm", "number", 1.0, "learner.max_grad_norm", lambda norm: norm or 0.0),
    ignored("max_seq_length", _DEAD, aliases=["max_token_length"]),
    composed("lr_scheduler_type", "text", "linear", "learner.lr_scheduler learner.lr_min_ratio"),
    ignored("max_train_steps", _DEAD),
    ignored(
        "activation_memory_budget activation_checkpointing_mode activation_checkpointing_modules",
        _OLMO_CORE + "learner.gradient_checkpointing decides what is kept for the backward pass",
    ),
    ignored("compile_model", _OLMO_CORE + "the learner does not compile its model"),
    mapped("fused_optimizer", "flag", True, "learner.fused_adam"),
    ignored("cp_degree cp_strategy logging_steps report_to", _DEAD),
    composed("output_dir", "text", "output/", "", why="Shoal creates the run's folder below --data-dir"),
    ignored("checkpointing_steps ephemeral_save_interval", _DEAD),
    composed("keep_last_n_checkpoints", "integer", 3, "checkpoint.keep_last checkpoint.export_keep_last"),
    ignored("resume_from_checkpoint", _DEAD + "; `shoal train --resume` continues a run"),
    composed(
        "set_weight_decay_on_bias_and_norm",
        "flag",
        True,
        "learner.weight_decay learner.weight_decay_on_bias_and_norm",
        why="as open-instruct's code has it: true leaves biases and norms undecayed, false decays all by 0.01",
    ),
    mapped("total_episodes", "integer", 100_000, "run.total_episodes"),
    ignored("world_size num_training_steps", _RUNTIME),
    composed("local_eval_every", "integer", 100, "evaluation.every_steps", aliases=["eval_freq"]),
    composed(
        "num_evals", "integer", None, "evaluation.every_steps", why="that many evaluations, spread evenly over the run"
    ),
    composed("save_freq", "integer", 200, "checkpoint.export_every_steps", why="-1 exports only at the end"),
    ignored("backend_timeout", "each call has its own deadline: coordinator.*_timeout_s and weights.timeout_s"),
    mapped(
        "model_dtype", "text", "bfloat16", "learner.compute_dtype", choice({"bfloat16": "auto", "float32": "float32"})
    ),
    mapped("num_mini_batches", "integer", 1, "grpo.num_mini_batches"),
    composed("beta", "number", 0.05, "kl.coef"),
    mapped("clip_lower", "number", 0.2, "loss.clip_low"),
    mapped("clip_higher", "number", 0.272, "loss.clip_high"),
    composed("use_rho_correction", "flag", True, "correction.weight"),
    composed("rho_clamp_lower_bound", "number", 0.0, "correction.weight_low"),
    composed("rho_clamp_upper_bound", "number", 2.0, "correction.weight_high"),
    composed("truncated_importance_sampling_ratio_cap", "number", None, "correction.weight correction.weight_high"),
    *each(composed("rho_mask_", "number", 0.0, "correction.filters"), "lower_bound upper_bound"),
    composed("rho_mask_sequence_level", "flag", False, "correction.weight correction.filters"),
    composed("rho_mask_tv_divergence", "flag", False, "correction.filters"),
    mapped(
        "kl_estimator",
        "text",
        "2",
        "kl.estimator",
        choice(
            {"0": "k1", "1": "k2", "2": "k3", "3": "ratio_k1", "kl1": "k1", "kl2": "k2", "kl3": "k3", "kl4": "ratio_k1"}
        ),
    ),
    composed("loss_denominator", "text", "token", "loss.aggregation loss.denominator"),
    composed("masked_mean_axis", "text", None, "loss.aggregation"),
    composed("masked_mean_denominator", "text", None, "loss.aggregation loss.denominator"),
    composed("alpha", "number", 0.6, "kl.reference_alpha"),
    composed("ref_policy_update_freq", "integer", None, "kl.reference_update_steps"),
    composed("load_ref_policy", "flag", True, "kl.reference"),
    mapped("loss_fn", "text", "dapo", "loss.objective", choice({"dapo": "ppo_clip", "cispo": "cispo"})),
    ignored("record_entropy", "entropy is always measured"),
    composed("use_vllm_logprobs", "flag", False, "loss.baseline"),
    composed("num_learners_per_node", "integers", [1], "launch.num_learner_ranks", aliases=["actor_num_gpus_per_node"]),
    ignored("num_nodes", "the deployment decides where processes run; open-instruct only prints it"),
    mapped("sequence_parallel_size", "integer", 1, "learner.sequence_parallel_size"),
    mapped("deepspeed_stage", "integer", 0, "learner.zero_stage"),
    composed(
        "deepspeed_zpg",
        "integer",
        8,
        "learner.zero_hpz_partition_size",
        why="with ZeRO 3, if it divides the number of ranks",
    ),
    mapped("deepspeed_offload_param", "flag", False, "learner.offload_parameters"),
    mapped("deepspeed_offload_optimizer", "flag", False, "learner.offload_optimizer"),
    ignored("deepspeed_checkpoint_load_universal", "a run resumes on the number of ranks that it had"),
    ignored("gather_whole_model", "ZeRO 3 parameters are gathered a bucket at a time"),
    composed(
        "fsdp_shard_degree",
        "integer",
        None,
        "learner.zero_stage",
        why="ZeRO 3 above 1, unless deepspeed_stage is given",
    ),
    ignored("fsdp_num_replicas", _OLMO_CORE + "ZeRO 3 shares the model among all ranks"),
    ignored("enable_queue_dashboard queue_dashboard_port", "`shoal run watch` shows the same"),
    ignored("verbose", "logs are JSON lines with a level"),
    composed("checkpoint_state_freq", "integer", 200, "checkpoint.every_steps"),
    composed("checkpoint_state_dir", "text", None, "", why="checkpoints are in the run's folder"),
    composed("gs_checkpoint_state_dir", "text", None, "checkpoint.mirror"),
    composed("gs_bucket_path", "text", None, "checkpoint.mirror", why="if gs_checkpoint_state_dir is unset"),
    ignored("cache_dataset_only", "`shoal config check --deep` loads the data and exits"),
)

TRACKING = [
    mapped("with_tracking", "flag", False, "tracking.wandb", lambda on: "online" if on else "disabled"),
    composed(
        "wandb_project", "text", "open_instruct_internal", "tracking.wandb_project", aliases=["wandb_project_name"]
    ),
    composed("wandb_entity", "text", None, "tracking.wandb_entity"),
    composed("wandb_group_name", "text", None, "tracking.wandb_group"),
]

PLACEMENT = [mapped("single_gpu_mode", "flag", False, "launch.single_gpu")]

EARLIER = rows(
    composed("local_rollout_batch_size", "integer", None, "grpo.groups_per_step", why="times the number of ranks"),
    composed(
        "local_mini_batch_size",
        "integer",
        None,
        "grpo.num_mini_batches",
        why="local_rollout_batch_size x num_samples_per_prompt_rollout / local_mini_batch_size",
    ),
    ignored(
        "rollout_batch_size mini_batch_size",
        "the earlier trainer computes it from local_rollout_batch_size and local_mini_batch_size",
    ),
    ignored("local_rollout_forward_batch_size", _ONE_ROW),
    refused(
        "reward_model_multiplier", "number", 0.0, "set reward.model and its weight in reward.weights", accepts=[0.0]
    ),
    ignored("reward_model_path", "used only if reward_model_multiplier is above 0, which is refused"),
)
"""Fields of the trainer that open-instruct had before grpo_fast.py."""

OUTSIDE = rows(
    outside("push_to_hub", "flag", True, _HUB),
    outside("hf_entity hf_repo_id hf_repo_revision hf_repo_url", "any", None, _HUB),
    outside("try_launch_beaker_eval_jobs_on_weka", "any", False, _BEAKER),
    outside("try_launch_beaker_eval_jobs try_auto_save_to_beaker", "any", True, _BEAKER),
    outside("oe_eval_tasks", "any", None, _BEAKER),
    outside("oe_eval_max_length", "any", 4096, _BEAKER),
    *each(outside("oe_eval_", "any", None, _BEAKER), "beaker_image gpu_multiplier"),
    outside("eval_priority", "any", "normal", _BEAKER),
    outside("eval_workspace", "any", "ai2/tulu-3-results", _BEAKER),
    outside("beaker_eval_freq", "any", -1, _BEAKER),
    outside("send_slack_alerts", "flag", False, "a monitoring system raises alerts from the services' metrics"),
)

DATA = rows(
    mapped("max_prompt_token_length", "integer", 256, "data.max_prompt_tokens"),
    mapped("response_length", "integer", 256, "sampling.max_completion_tokens"),
    composed("pack_length", "integer", 512, "learner.pack_tokens"),
    mapped("async_steps", "integer", 8, "grpo.max_staleness"),
    mapped(
        "num_samples_per_prompt_rollout",
        "integer",
        4,
        "grpo.group_size",
        aliases=["number_samples_per_prompt", "num_samples_per_prompt"],
    ),
    mapped("num_unique_prompts_rollout", "integer", 16, "grpo.groups_per_step", aliases=["num_unique_prompts"]),
    composed(
        "active_sampling", "flag", False, "grpo.active_sampling grpo.max_refills", aliases=["active_fill_completions"]
    ),
    mapped("filter_zero_std_samples", "flag", True, "grpo.keep_zero_signal", lambda drops: not drops),
    mapped("no_resampling_pass_rate", "number", None, "grpo.easy_rate", aliases=["no_resample_solve_rate"]),
    composed(
        "advantage_normalization_type",
        "text",
        "centered",
        "advantage.baseline advantage.scale advantage.std_ddof advantage.std_eps",
    ),
    mapped("mask_truncated_completions", "flag", False, "grpo.mask_truncated_completions"),
    composed("dataset_mixer_list", "texts", ["ai2-adapt-dev/rlvr_gsm8k_zs", "1.0"], "data.sources"),
    composed("dataset_mixer_list_splits", "texts", ["train"], "data.sources"),
    composed("dataset_mixer_eval_list", "texts", [], "evaluation.sources evaluation.num_prompts"),
    composed("dataset_mixer_eval_list_splits", "texts", ["test"], "evaluation.sources"),
    accepted(
        "dataset_transform_fn",
        "texts",
        ["rlvr_tokenize_v1", "rlvr_max_length_filter_v1"],
        "Shoal applies the chat template and filters by length: apply other transforms to the data first",
    ),
    ignored(
        "dataset_cache_mode dataset_local_cache_dir dataset_config_hash dataset_config_eval_hash dataset_skip_cache",
        "Shoal reads the data directly; Hugging Face caches it",
    ),
    composed("system_prompt_override_file", "text", None, "data.sources", why="the text of the file"),
    mapped("temperature", "number", 1.0, "sampling.temperature"),
    mapped("stop_strings", "any", [], "sampling.stop_strings", text_list),
    accepted("stop_token", "text", None, 'an earlier name: give stop_strings (for period, give ".")', accepts=["eos"]),
    mapped("inflight_updates", "flag", True, "weights.inflight_updates"),
    composed("eval_response_length", "integer", None, "evaluation.max_completion_tokens"),
    composed("eval_on_step_0", "flag", False, "evaluation.on_start"),
    composed("eval_pass_at_k", "integer", 1, "evaluation.samples_per_prompt"),
    composed("eval_temperature", "number", None, "evaluation.temperature", why="the training's, if it is not given"),
    composed("eval_top_p", "number", None, "evaluation.top_p"),
    ignored("save_traces", "the ledger keeps the text and scores of every group"),
    ignored("rollouts_save_path", "the ledger is in the run's folder"),
    ignored("max_possible_score", _RUNTIME),
    ignored(
        "inference_batch_size",
        "the engine admits as many requests as its cache holds: generator.max_num_seqs",
        aliases=["vllm_inference_batch_size"],
    ),
    accepted("allow_world_padding", "flag", False, "no rank gets padding: rows are dealt out evenly"),
)

REWARD = rows(
    composed("apply_r1_style_format_reward", "flag", False, "reward.format", aliases=["add_r1_style_format_reward"]),
    composed("r1_style_format_reward", "number", 1.0, "reward.format"),
    composed("additive_format_reward", "flag", False, "reward.format"),
    composed("apply_verifiable_reward", "flag", True, "reward.apply_verifiable_reward"),
    composed("verification_reward", "number", 10.0, "data.sources", why="the weight of every source"),
    composed("remap_verifier", "text", None, "reward.remap"),
    composed("non_stop_penalty", "flag", False, "reward.non_stop_penalty"),
    composed("non_stop_penalty_value", "number", 0.0, "reward.non_stop_penalty", aliases=["penalty_reward_value"]),
    composed("max_length_verifier_max_length", "integer", 32768, "reward.verifiers"),
    composed(
        "llm_judge_model",
        "text",
        "azure/gpt-4o-mini-standard",
        "reward.judge",
        why="without the provider before the first slash; reward.judge.base_url is the address",
    ),
    composed(
        JUDGE_ADDRESS, "text", None, "reward.judge", why="a variable of the environment, for models of hosted_vllm/"
    ),
    composed("llm_judge_max_tokens", "integer", 2048, "reward.judge", why=_WITH_JUDGE),
    ignored(
        "llm_judge_max_context_length",
        "questions are never cut: a question that is too long for the judge's server is UNSCORABLE",
    ),
    composed("llm_judge_temperature", "number", 1.0, "reward.judge", why=_WITH_JUDGE),
    composed("llm_judge_timeout", "integer", 60, "reward.judge", why=_WITH_JUDGE),
    composed(
        "apply_llm_verifier_reward",
        "flag",
        False,
        "reward.apply_verifiable_reward",
        why="the labels of the data decide which completions a judge scores",
    ),
    not_yet(
        "apply_evolving_rubric_reward", "flag", False, "evolving rubrics", aliases=["apply_adaptive_rubric_reward"]
    ),
    ignored(
        "max_active_rubrics cache_evolving_rubric_data_dir cache_adaptive_rubric_data_dir save_adaptive_rubrics "
        "normalize_rubric_scores use_rubric_buffer use_static_rubrics_as_persistent_rubrics",
        _OF_EVOLVING,
    ),
    ignored("code_api_url", "programs run in the sandbox of the reward service"),
    composed("code_max_execution_time", "number", 1.0, "reward.verifiers reward.timeout_s"),
    composed("code_pass_rate_reward_threshold", "number", 0.0, "reward.verifiers"),
    composed("code_apply_perf_penalty", "flag", False, "reward.verifiers"),
)

ENGINE_AND_MODEL = rows(
    mapped("vllm_num_engines", "integer", 1, "launch.num_generators"),
    mapped("vllm_tensor_parallel_size", "integer", 1, "generator.tensor_parallel_size"),
    mapped("vllm_enforce_eager", "flag", False, "generator.enforce_eager"),
    ignored("vllm_attention_backend", "the engine chooses its own attention kernels"),
    ignored("vllm_sync_backend", _DEAD + "; Shoal chooses weights.backend by the device"),
    mapped("vllm_gpu_memory_utilization", "number", 0.9, "generator.gpu_memory_utilization"),
    ignored("vllm_enable_prefix_caching", "a group stays on one engine, which computes its prompt once"),
    mapped("vllm_top_p", "number", 1.0, "sampling.top_p"),
    not_yet("use_fp8_kv_cache", "flag", False, "FP8 rollout", aliases=["vllm_use_fp8_kv_cache"]),
    composed("model_name_or_path", "text", None, "model.path"),
    mapped("model_revision", "text", None, "model.revision"),
    ignored("dtype", _DEAD, aliases=["torch_dtype"]),
    mapped(
        "attn_implementation",
        "text",
        None,
        "learner.attention",
        choice(
            {
                None: "auto",
                "True": "auto",
                "False": "sdpa",
                "flash_2": "auto",
                "flash_attention_2": "auto",
                "sdpa": "sdpa",
                "eager": "eager",
            }
        ),
        aliases=["use_flash_attn"],
    ),
    ignored("use_cache", _DEAD),
    mapped(
        "gradient_checkpointing",
        "flag",
        False,
        "learner.gradient_checkpointing",
        lambda _: True,
        why="open-instruct always does",
    ),
    ignored(
        "use_peft lora_r lora_alpha lora_dropout lora_target_modules lora_modules_to_save lora_task_type load_in_8bit "
        "load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant",
        _DEAD + ": its GRPO trains all weights; for adapters in Shoal, set learner.lora",
    ),
    composed("tokenizer_name_or_path", "text", None, "model.tokenizer", aliases=["tokenizer_name"]),
    refused(
        "tokenizer_revision", "text", None, "the tokenizer is read at the model's revision", accepts=["main", None]
    ),
    composed("trust_remote_code", "flag", False, "model.trust_remote_code"),
    accepted("use_fast", "flag", True, "tokenizers are always the fast ones"),
    ignored("use_slow_tokenizer", _DEAD),
    composed("chat_template_name", "text", None, "model.chat_template", why="by its name in Shoal, if it has one"),
    composed("add_bos", "flag", False, "model.chat_template", why="the text of the template, after {{ bos_token }}"),
    accepted("get_tokenizer_fn", "text", "get_tokenizer_tulu_v2_2", "the tokenizer is used as its files define it"),
    ignored("tokenizer_files_hash", _RUNTIME),
    composed("ground_truths_key", "text", "ground_truth", "data.sources"),
    composed("sft_messages_key", "text", "messages", "data.sources"),
)

LATER = rows(
    not_yet("opd_enabled opd_pure", "flag", False, "distillation"),
    not_yet("opd_teacher_model_name_or_path", "text", None, "distillation"),
    ignored(
        "opd_loss_mode opd_topk opd_loss_coef opd_kl_coef opd_use_task_rewards opd_teacher_model_revision "
        "opd_teacher_num_engines opd_teacher_tensor_parallel_size opd_teacher_gpu_memory_utilization opd_teacher_dtype "
        "opd_teacher_enforce_eager opd_teacher_enable_prefix_caching opd_teacher_prompt_mode",
        "an option of distillation, which is refused",
    ),
    outside("clean_checkpoints_at_end", "flag", False, "Shoal keeps the last checkpoints: checkpoint.keep_last"),
    ignored("update_progress_every", "`shoal run watch` shows every step"),
    refused("use_value_model", "flag", False, "GRPO needs no value model, and Shoal trains none"),
    ignored("vllm_gdn_prefill_backend", "the engine chooses its own kernels"),
)
"""Fields on open-instruct's branches."""
