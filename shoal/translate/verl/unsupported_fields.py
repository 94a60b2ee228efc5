"""verl's settings for its processes, its output and features that Shoal does not have, one row each."""

from shoal.translate.shared.field import (
    Field,
    accepted,
    choice,
    composed,
    each,
    ignored,
    mapped,
    not_yet,
    played,
    refused,
    rows,
)
from shoal.translate.verl.names import ACTOR, MODEL, OPTIM, REFERENCE, ROLLOUT

_ENGINE = "a detail of the engine"
_SHOWS = "docs/telemetry.md describes spans, metrics and logs"
_PROCESSES = "a detail of verl's processes"
_ONE_MODEL = "a way to save memory in the loss; here learner.logits_chunk_tokens splits the logits"
_READ = "the coordinator reads the data"
_OFF = "its switch is off, or refused"
_MEMORY = "learner.offload_optimizer and learner.zero_stage decide where the optimizer's states are"
_STATES = "the optimizer's states are float32"
_NOT_CONSTANT = "give actor.optim.lr_scheduler_type, min_lr_ratio and lr_warmup_steps, or --set learner.lr_scheduler"
_LORA_OF = "learner.lora trains float32 adapters, whose first matrix is random and whose second is 0"

_NEW_ADAPTERS = "adapters begin at 0: merge this one into the model first"

UNSUPPORTED: list[Field] = rows(
    # Data
    refused("data.train_max_samples", "integer", -1, "to limit rows, set count in data.sources", accepts=[-1, None]),
    *each(
        ignored("data.", _READ),
        "use_shm return_raw_input_ids return_full_prompt validation_shuffle custom_cls.name cache_dir",
    ),
    *each(
        ignored("data.", "an option of vision and audio, which are not yet available"),
        "image_patch_size return_multi_modal_inputs mm_processor_kwargs mm_processor_kwargs.*",
    ),
    played("data.tool_config_path data.function_tool_path", "text"),
    refused("data.sampler.class_path", "text", None, "data.shuffle and run.seed decide the order of prompts"),
    ignored("data.sampler.class_name", _OFF),
    # Model
    refused(f"{MODEL}.hf_config_path", "text", None, "Shoal uses the model's own config.json"),
    refused(f"{MODEL}.external_lib", "text", None, "Shoal does not run external code"),
    *each(
        accepted(f"{MODEL}.override_config.", "number", None, "the model is trained without dropout", accepts=[0.0]),
        "attention_dropout embd_pdrop resid_pdrop",
    ),
    mapped(
        f"{MODEL}.override_config.attn_implementation",
        "text",
        None,
        "learner.attention",
        choice({None: "auto", "sdpa": "sdpa", "flash_attention_2": "auto", "eager": "eager"}),
    ),
    *each(ignored(f"{MODEL}.", _ONE_MODEL), "use_prefix_tree prefix_tree_attention"),
    ignored(
        f"{MODEL}.override_config.max_position_embeddings",
        "rotary positions do not depend on it; the engine reads it from the model's config.json, as verl's does",
    ),
    refused(
        f"{MODEL}.override_config.*",
        "any",
        None,
        "Shoal uses the model's own config.json: change it there, then skip this field",
    ),
    ignored(f"{MODEL}.override_config", "the table is empty"),
    ignored(f"{MODEL}.use_liger", "the learner has its own kernels"),
    ignored(f"{MODEL}.fused_kernel_options.*", _ONE_MODEL),
    ignored(f"{MODEL}.tiled_mlp.*", "activations are recomputed, not tiled"),
    composed(f"{MODEL}.exclude_modules", "any", None, "learner.lora"),
    refused(f"{MODEL}.lora_adapter_path", "text", None, _NEW_ADAPTERS),
    ignored(f"{MODEL}.lora.merge", "adapters are merged into the weights that generators get"),
    accepted(f"{MODEL}.lora.type", "text", "lora", "only LoRA is available", accepts=["canonical_lora"]),
    composed(f"{MODEL}.lora.rank", "integer", 0, "learner.lora"),
    composed(f"{MODEL}.lora.alpha", "integer", 32, "learner.lora"),
    composed(f"{MODEL}.lora.dropout", "number", 0.0, "learner.lora"),
    composed(f"{MODEL}.lora.target_modules", "texts", None, "learner.lora", why="Megatron's four, or layer names"),
    composed(f"{MODEL}.lora.exclude_modules", "any", None, "learner.lora"),
    refused(f"{MODEL}.lora.adapter_path", "text", None, _NEW_ADAPTERS),
    ignored(f"{MODEL}.lora.*", _LORA_OF),
    not_yet(f"{MODEL}.mtp.enable", "flag", False, "multi-token prediction"),
    ignored(f"{MODEL}.mtp.*", _OFF),
    # Actor
    ignored("actor_rollout_ref.nccl_timeout", "each call has its own deadline: coordinator.*_timeout_s"),
    *each(
        ignored(f"{ACTOR}.", _ONE_MODEL),
        "use_fused_kernels use_remove_padding use_prefix_grouper use_prefix_tree entropy_from_logits_with_chunking "
        "entropy_from_logits_chunk_size entropy_checkpointing pad_to_length calculate_sum_pi_squared "
        "sum_pi_squared_checkpointing",
    ),
    ignored(f"{ACTOR}.model_engine", "the learner uses DeepSpeed; [learner] decides how its ranks share the model"),
    ignored(f"{ACTOR}.rollout_n", "the same as actor_rollout_ref.rollout.n"),
    ignored(f"{ACTOR}.data_loader_seed", "mini-batches are whole groups, in the order in which they were issued"),
    ignored(f"{ACTOR}.freeze_vision_tower", "text models have no vision tower"),
    ignored(f"{ACTOR}.profiler.*", _SHOWS),
    ignored(f"{ACTOR}.router_replay.*", "an option of mixture-of-experts training, which is not yet available"),
    *each(ignored(f"{ACTOR}.", _PROCESSES), "veomni.* deepspeed.* automodel.* mindspeed.* torchtitan.*"),
    *(
        not_yet(f"{ACTOR}.{part}qat.enable", "flag", False, "quantized training")
        for part in ("", "fsdp_config.", "megatron.")
    ),
    ignored(f"{ACTOR}.qat.*", _OFF),
    refused(f"{ACTOR}.policy_loss.rollout_is_level", "any", None, "give algorithm.rollout_correction.rollout_is"),
    *each(
        ignored(f"{ACTOR}.policy_loss.", "an option of loss modes that are refused"),
        "clip_cov_ratio clip_cov_lb clip_cov_ub kl_cov_ratio ppo_kl_coef dro_beta",
    ),
    *each(
        accepted(f"{OPTIM}.", "text", "AdamW", "the optimizer is AdamW", accepts=["adamw", "adam"]), "optimizer name"
    ),
    ignored(f"{OPTIM}.optimizer_impl", "AdamW comes from DeepSpeed or torch: learner.fused_adam"),
    ignored(f"{OPTIM}.zero_indexed_step", "the schedule begins at 0"),
    # The optimizers of Megatron, veOmni and torchtitan
    mapped(f"{OPTIM}.eps", "number", 1e-8, "learner.adam_eps"),
    accepted(f"{OPTIM}.lr_decay_style", "text", "constant", _NOT_CONSTANT),
    *each(
        accepted(f"{OPTIM}.", "number", 0.0, _NOT_CONSTANT, accepts=[None]),
        "min_lr lr_min lr_start lr_warmup_init min_lr_factor",
    ),
    *each(
        ignored(f"{OPTIM}.", "an option of schedules other than the constant one"),
        "lr_decay_steps lr_decay_ratio lr_wsd_decay_style lr_wsd_decay_steps decay_type",
    ),
    accepted(f"{OPTIM}.weight_decay_incr_style", "text", "constant", "the weight decay stays the same during a run"),
    ignored(f"{OPTIM}.use_checkpoint_opt_param_scheduler", "a resume follows the schedule of its configuration"),
    *each(
        accepted(f"{OPTIM}.", "text", "fp32", _STATES, accepts=[None]),
        "main_grads_dtype exp_avg_dtype exp_avg_sq_dtype",
    ),
    *each(
        ignored(f"{OPTIM}.", _MEMORY),
        "use_layer_wise_distributed_optimizer use_precision_aware_optimizer "
        "override_optimizer_config.optimizer_offload_fraction override_optimizer_config.optimizer_cpu_offload "
        "override_optimizer_config.overlap_cpu_optimizer_d2h_h2d "
        "override_optimizer_config.use_precision_aware_optimizer",
    ),
    *each(
        ignored(f"{OPTIM}.muon_", "an option of Muon, which is refused at actor.optim.optimizer"),
        "momentum nesterov split_qkv scale_mode coefficient_type num_ns_steps tp_mode fp32_matmul_prec "
        "extra_scale_factor scalar_optimizer match_adamw_update_rms",
    ),
    refused(
        f"{OPTIM}.override_optimizer_config.*",
        "any",
        None,
        "give AdamW's settings with actor.optim.betas and the fields beside it",
    ),
    ignored(f"{OPTIM}.override_optimizer_config", "the table is empty"),
    played("atropos.*", "any", accepts=[]),
    # Engine
    composed(f"{ROLLOUT}.nnodes", "integer", 0, "launch.num_generators", aliases=["rollout.nnodes"]),
    composed(
        f"{ROLLOUT}.n_gpus_per_node", "integer", None, "launch.num_generators", aliases=["rollout.n_gpus_per_node"]
    ),
    *(
        not_yet(f"{ROLLOUT}.engine_kwargs.{engine}.{name}", "text", "auto", "FP8 rollout", accepts=["auto", None])
        for engine in ("vllm", "sglang", "trtllm")
        for name in ("kv_cache_dtype", "quantization")
    ),
    *each(
        refused(f"{ROLLOUT}.engine_kwargs.", "any", None, "the engine samples from the model as its files define it"),
        "vllm.hf_overrides vllm.logits_processors vllm.speculative_config sglang.json_model_override_args",
    ),
    played(f"{ROLLOUT}.agent.default_agent_loop", "text", default="single_turn_agent"),
    *each(
        played(f"{ROLLOUT}.agent.", "any"), "agent_loop_config_path agent_loop_manager_class custom_async_server.path"
    ),
    *each(
        ignored(f"{ROLLOUT}.", _ENGINE),
        "cudagraph_capture_sizes data_parallel_size expert_parallel_size moe_tensor_parallel_size scheduling_policy "
        "multi_stage_wake_up router_config_path skip_tokenizer_init moe_load_balance_metrics_interval limit_images "
        "enable_sleep_mode swap_space checkpoint_engine.* disaggregation.* update_weights_bucket_megabytes",
    ),
    *each(ignored(f"{ROLLOUT}.", _SHOWS), "trace.* prometheus.* profiler.* skip.* skip_rollout skip_dump_dir"),
    *each(ignored(f"{ROLLOUT}.", "each prompt has its own seed, derived from run.seed"), "seed full_determinism"),
    accepted(
        f"{ROLLOUT}.logprobs_mode",
        "text",
        "processed_logprobs",
        "the engine reports log-probabilities after the temperature is applied",
    ),
    accepted(f"{ROLLOUT}.over_sample_rate", "number", 0.0, "no prompt is dropped because others finished first"),
    not_yet(f"{ROLLOUT}.enable_rollout_routing_replay", "flag", False, "mixture of experts"),
    *each(not_yet(f"{ROLLOUT}.", "text", None, "FP8 rollout"), "quantization quantization_config_file"),
    not_yet(f"{ROLLOUT}.mtp.enable", "flag", False, "multi-token prediction"),
    *each(ignored(f"{ROLLOUT}.", _OFF), "mtp mtp.* qat qat.*"),
    mapped(f"{ROLLOUT}.multi_turn.max_assistant_turns", "integer", None, "episodes.max_turns"),
    mapped(
        f"{ROLLOUT}.multi_turn.format",
        "text",
        "hermes",
        "episodes.tool_parser",
        choice({"hermes": "hermes", "qwen3_coder": "qwen3_xml"}),
    ),
    ignored(f"{ROLLOUT}.multi_turn.*", "only multi_turn.enable turns it on"),
    composed(f"{REFERENCE}.sync_ref_model", "flag", False, "kl.reference_update_steps"),
    composed(f"{REFERENCE}.ref_model_sync_steps", "integer", 512, "kl.reference_update_steps"),
    composed(f"{REFERENCE}.ref_model_mixup_alpha", "number", 0.6, "kl.reference_alpha"),
    refused(f"{REFERENCE}.model.*", "any", None, "the reference is the model that training begins with"),
    ignored(f"{REFERENCE}.*", "the learner loads the reference model when [kl] needs it"),
    # Algorithm
    not_yet("algorithm.use_pf_ppo", "flag", False, "PF-PPO"),
    ignored("algorithm.pf_ppo.*", _OFF),
    ignored("algorithm.filter_groups.max_inflight_gen_batches", "grpo.max_staleness bounds the groups in flight"),
    accepted(
        "algorithm.rollout_correction.loss_type",
        "text",
        "ppo_clip",
        "with bypass_mode, Shoal's loss clips the ratio to the engine's probabilities",
    ),
    *each(
        refused("algorithm.", "any", None, "an earlier name: give rollout_is or rollout_rs in rollout_correction"),
        "rollout_is rollout_is_level rollout_is_mode rollout_is_threshold rollout_is_threshold_lower "
        "rollout_is_veto_threshold",
    ),
    # Trainer
    *each(
        ignored("trainer.", _PROCESSES),
        "use_v1 v1.sync v1.colocate_async.* v1.separate_async.* v1.sampler.* esi_redundant_time "
        "checkpoint_callback_class del_local_ckpt_after_load remove_previous_ckpt_in_save "
        "ray_wait_register_center_timeout worker_nsight_options.* controller_nsight_options.* npu_profile.* "
        "profile_steps",
    ),
    ignored("trainer.balance_keep_minibatch", "mini-batches are whole groups, in the order in which they were issued"),
    ignored("profile.*", _SHOWS),
    ignored("critic", "GRPO has no critic"),
    *(
        refused(f"{prefix}.reward_kwargs.*", "any", None, "an argument of verl's scorers: set reward.verifiers instead")
        for prefix in ("reward", "reward_model")
    ),
    composed("trainer.v1.trainer_mode", "text", "sync", "grpo.max_staleness"),
    composed("trainer.v1.sampler.max_off_policy_threshold", "integer", 8, "grpo.max_staleness"),
    *(
        composed(f"trainer.v1.{mode}.num_warmup_batches", "number", 1.0, "grpo.max_staleness")
        for mode in ("colocate_async", "separate_async")
    ),
    composed("trainer.v1.separate_async.parameter_sync_step", "integer", 4, "learner.warmup_steps"),
    refused("trainer.v1.sampler.custom_sampler.path", "text", None, "data.shuffle and run.seed decide the order"),
    not_yet("distillation.enabled", "flag", False, "distillation"),
    ignored("distillation.*", _OFF),
    ignored("global_profiler.* skip.*", _SHOWS),
    ignored("transfer_queue.*", _PROCESSES),
    # The experimental asynchronous trainers
    composed("program", "text", "main_ppo", "grpo.max_staleness", why="the module that a script starts"),
    composed("async_training.require_batches", "integer", 1, "grpo.groups_per_step grpo.num_mini_batches"),
    composed("async_training.trigger_parameter_sync_step", "integer", 4, "grpo.groups_per_step grpo.num_mini_batches"),
    composed("async_training.staleness_threshold", "number", 0.1, "grpo.max_staleness"),
    composed("async_training.partial_rollout", "flag", True, "weights.inflight_updates"),
    composed("rollout.total_rollout_steps", "integer", None, "run.num_steps"),
    composed("rollout.test_freq", "integer", None, "evaluation.every_steps"),
    ignored("async_training.*", _PROCESSES),
    ignored("rollout.*", "the same as trainer.total_epochs and actor_rollout_ref.rollout.n"),
    ignored(f"{ACTOR}.use_rollout_log_probs", "the same as algorithm.rollout_correction.bypass_mode"),
    # Rewards
    ignored(
        "reward_model.reward_kwargs.overlong_buffer_cfg.log reward.reward_kwargs.overlong_buffer_cfg.log "
        "reward_model.overlong_buffer.log",
        "the metrics always include reward/overlong",
    ),
    ignored(
        "reward.num_workers reward_model.num_workers reward_model.launch_reward_fn_async reward_model.use_reward_loop "
        "reward_model.strategy reward_model.reward_loop_source reward_model.reward_loop_module_path "
        "reward_model.reward_loop_class_name",
        "the reward service has its own workers",
    ),
    accepted("reward.reward_manager.source", "text", "register", "write a custom reward manager as a custom verifier"),
    ignored("reward.reward_manager.module.*", _OFF),
    *(
        ignored(f"{prefix}sandbox_fusion.*", "programs run in the sandbox of the reward service")
        for prefix in ("", "reward.", "reward_model.")
    ),
    ignored(
        "reward.reward_model.* reward_model.model.* reward_model.rollout.* reward_model.megatron.* "
        "reward_model.profiler.* reward_model.micro_batch_size reward_model.micro_batch_size_per_gpu "
        "reward_model.max_length reward_model.use_dynamic_bsz reward_model.forward_max_token_len_per_gpu "
        "reward_model.ulysses_sequence_parallel_size reward_model.enable_resource_pool reward_model.n_gpus_per_node "
        "reward_model.nnodes",
        "reward.model has the settings of the reward model",
    ),
)
