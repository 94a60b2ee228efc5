"""verl's settings that say how its processes run, what they show, and what Shoal does not have: one row each."""

from shoal.config.translate.fields import Field, accepted, ignored, refused
from shoal.config.translate.verl.names import ACTOR, MODEL, REFERENCE, ROLLOUT

_ENGINE = "the engine's own matter"
_SHOWS = "spans, metrics and logs are what docs/telemetry.md says"
_PROCESSES = "how verl's processes run and talk"
_ONE_MODEL = "how memory is saved while the loss is computed; here logits are cut by learner.logits_chunk_tokens"
_VISION = "vision models are put off"
_TOOLS = "tools and multi-turn environments are put off"
_QUANTIZED = "LoRA and quantized training are put off: all weights are trained"
_TEACHER = "distillation from a teacher is put off"
_READ = "data is read by the coordinator"
_OFF = "its switch is off, or refused"
_LORA_OF = "LoRA's, which is refused where its rank is above 0"

SURROUNDINGS: list[Field] = [
    # Data
    refused("data.train_max_samples", "integer", -1, "give a source of data.sources a count", accepts=[-1, None]),
    refused(
        "data.apply_chat_template_kwargs.*", "any", None, "templates take no variables: write them into the template"
    ),
    ignored("data.apply_chat_template_kwargs", "it holds nothing"),
    refused("data.trust_remote_code", "flag", False, "code from a data set's folder is not run"),
    *(
        ignored(f"data.{name}", _READ)
        for name in (
            "use_shm",
            "return_raw_input_ids",
            "return_full_prompt",
            "validation_shuffle",
            "custom_cls.name",
            "cache_dir",
        )
    ),
    *(
        ignored(f"data.{name}", "images, sound and films are put off: text alone is trained on")
        for name in (
            "image_patch_size",
            "video_key",
            "audio_key",
            "return_multi_modal_inputs",
            "mm_processor_kwargs",
            "mm_processor_kwargs.*",
        )
    ),
    refused("data.tool_config_path", "text", None, _TOOLS),
    refused("data.function_tool_path", "text", None, _TOOLS),
    refused("data.sampler.class_path", "text", None, "prompts come in the order of data.shuffle and run.seed"),
    ignored("data.sampler.class_name", _OFF),
    # Model
    refused(f"{MODEL}.hf_config_path", "text", None, "the model's own config.json counts"),
    refused(f"{MODEL}.external_lib", "text", None, "code from outside is not run"),
    accepted(
        f"{MODEL}.override_config.attention_dropout",
        "number",
        None,
        [0.0, None],
        "the model is trained without dropout",
    ),
    accepted(
        f"{MODEL}.override_config.embd_pdrop", "number", None, [0.0, None], "the model is trained without dropout"
    ),
    accepted(
        f"{MODEL}.override_config.resid_pdrop", "number", None, [0.0, None], "the model is trained without dropout"
    ),
    refused(
        f"{MODEL}.override_config.*", "any", None, "the model's own config.json counts: change it there, then skip this"
    ),
    ignored(f"{MODEL}.override_config", "it holds nothing"),
    ignored(f"{MODEL}.use_liger", "the learner has kernels of its own"),
    ignored(f"{MODEL}.fused_kernel_options.*", _ONE_MODEL),
    ignored(f"{MODEL}.tiled_mlp.*", "activations are recomputed, not cut"),
    refused(f"{MODEL}.exclude_modules", "any", None, _QUANTIZED),
    refused(f"{MODEL}.lora_adapter_path", "text", None, _QUANTIZED),
    refused(f"{MODEL}.lora.rank", "integer", 0, _QUANTIZED, accepts=[0]),
    ignored(f"{MODEL}.lora.*", _LORA_OF),
    refused(f"{MODEL}.mtp.enable", "flag", False, "heads that predict several tokens are put off"),
    ignored(f"{MODEL}.mtp.*", _OFF),
    # Actor
    ignored("actor_rollout_ref.nccl_timeout", "each call has its own deadline: coordinator.*_timeout_s"),
    *(
        ignored(f"{ACTOR}.{name}", _ONE_MODEL)
        for name in (
            "use_fused_kernels",
            "use_remove_padding",
            "use_prefix_grouper",
            "entropy_from_logits_with_chunking",
            "entropy_from_logits_chunk_size",
            "entropy_checkpointing",
            "pad_to_length",
            "calculate_sum_pi_squared",
            "sum_pi_squared_checkpointing",
        )
    ),
    ignored(f"{ACTOR}.rollout_n", "it is actor_rollout_ref.rollout.n again"),
    ignored(f"{ACTOR}.data_loader_seed", "mini-batches are whole groups in the order issued"),
    ignored(f"{ACTOR}.freeze_vision_tower", "text models have no vision tower"),
    ignored(f"{ACTOR}.profiler.*", _SHOWS),
    ignored(f"{ACTOR}.router_replay.*", "mixture-of-experts training is put off"),
    ignored(f"{ACTOR}.veomni.*", _PROCESSES),
    ignored(f"{ACTOR}.torchtitan.*", _PROCESSES),
    refused(f"{ACTOR}.qat.enable", "flag", False, _QUANTIZED),
    ignored(f"{ACTOR}.qat.*", _OFF),
    refused(f"{ACTOR}.policy_loss.rollout_is_level", "any", None, "give algorithm.rollout_correction.rollout_is"),
    *(
        ignored(f"{ACTOR}.policy_loss.{name}", "a constant of loss modes that are refused")
        for name in (
            "clip_cov_ratio",
            "clip_cov_lb",
            "clip_cov_ub",
            "kl_cov_ratio",
            "ppo_kl_coef",
            "dro_beta",
        )
    ),
    accepted(f"{ACTOR}.optim.optimizer", "text", "AdamW", ["AdamW"], "the optimizer is AdamW"),
    ignored(f"{ACTOR}.optim.optimizer_impl", "AdamW is DeepSpeed's, or torch's: learner.fused_adam"),
    ignored(f"{ACTOR}.optim.zero_indexed_step", "the schedule begins at 0"),
    refused(
        f"{ACTOR}.optim.override_optimizer_config", "any", None, "AdamW's settings are actor.optim.betas and its others"
    ),
    # Engine
    *(
        ignored(f"{ROLLOUT}.{name}", _ENGINE)
        for name in (
            "nnodes",
            "n_gpus_per_node",
            "cudagraph_capture_sizes",
            "data_parallel_size",
            "expert_parallel_size",
            "scheduling_policy",
            "multi_stage_wake_up",
            "router_config_path",
            "skip_tokenizer_init",
            "moe_load_balance_metrics_interval",
            "limit_images",
            "enable_sleep_mode",
            "swap_space",
            "checkpoint_engine.*",
            "disaggregation.*",
            "update_weights_bucket_megabytes",
        )
    ),
    *(
        ignored(f"{ROLLOUT}.{name}", _SHOWS)
        for name in ("trace.*", "prometheus.*", "profiler.*", "skip.*", "skip_rollout", "skip_dump_dir")
    ),
    ignored(f"{ROLLOUT}.seed", "each prompt has a seed of its own, from run.seed"),
    ignored(f"{ROLLOUT}.full_determinism", "each prompt has a seed of its own, from run.seed"),
    accepted(
        f"{ROLLOUT}.logprobs_mode",
        "text",
        "processed_logprobs",
        ["processed_logprobs"],
        "the engine's log-probabilities are those after the temperature",
    ),
    accepted(
        f"{ROLLOUT}.over_sample_rate", "number", 0.0, [0.0], "no prompt is given up because others ended before it"
    ),
    accepted(f"{ROLLOUT}.enable_rollout_routing_replay", "flag", False, [False], "mixture-of-experts is put off"),
    refused(f"{ROLLOUT}.quantization", "text", None, "quantized engines are put off"),
    refused(f"{ROLLOUT}.quantization_config_file", "text", None, "quantized engines are put off"),
    refused(f"{ROLLOUT}.mtp.enable", "flag", False, "heads that predict several tokens are put off"),
    ignored(f"{ROLLOUT}.mtp", _OFF),
    ignored(f"{ROLLOUT}.mtp.*", _OFF),
    ignored(f"{ROLLOUT}.qat", _OFF),
    ignored(f"{ROLLOUT}.qat.*", _OFF),
    ignored(f"{ROLLOUT}.multi_turn.*", "only multi_turn.enable turns it on"),
    ignored(f"{REFERENCE}.*", "the reference is held beside the policy, when kl needs it"),
    # Algorithm
    refused("algorithm.use_pf_ppo", "flag", False, "weighing completions by their rewards is put off"),
    ignored("algorithm.pf_ppo.*", _OFF),
    ignored("algorithm.filter_groups.max_inflight_gen_batches", "groups in flight are bounded by grpo.max_staleness"),
    accepted(
        "algorithm.rollout_correction.loss_type",
        "text",
        "ppo_clip",
        ["ppo_clip"],
        "with bypass_mode the clipped ratio to the engine is trained on",
    ),
    *(
        refused(
            f"algorithm.{name}", "any", None, "an earlier name: give algorithm.rollout_correction.rollout_is or _rs"
        )
        for name in (
            "rollout_is",
            "rollout_is_level",
            "rollout_is_mode",
            "rollout_is_threshold",
            "rollout_is_threshold_lower",
            "rollout_is_veto_threshold",
        )
    ),
    # Trainer
    *(
        ignored(f"trainer.{name}", _PROCESSES)
        for name in (
            "use_v1",
            "v1.sync",
            "v1.colocate_async.*",
            "v1.separate_async.*",
            "v1.sampler.*",
            "esi_redundant_time",
            "checkpoint_callback_class",
            "del_local_ckpt_after_load",
            "remove_previous_ckpt_in_save",
            "ray_wait_register_center_timeout",
            "worker_nsight_options.*",
            "controller_nsight_options.*",
            "npu_profile.*",
            "profile_steps",
        )
    ),
    ignored("trainer.val_generations_to_log_to_wandb", "the ledger keeps every group's text and scores"),
    accepted(
        "trainer.v1.trainer_mode",
        "text",
        "sync",
        ["sync"],
        "sampling beside training is grpo.max_staleness: skip this, and --set grpo.max_staleness=1",
    ),
    refused("distillation.enabled", "flag", False, _TEACHER),
    ignored("distillation.*", _OFF),
    *(ignored(name, _SHOWS) for name in ("global_profiler.*", "skip.*")),
    ignored("transfer_queue.*", _PROCESSES),
    # Rewards
    ignored("reward_model.reward_kwargs.overlong_buffer_cfg.log", "reward/overlong is always among the metrics"),
    ignored("reward.reward_kwargs.overlong_buffer_cfg.log", "reward/overlong is always among the metrics"),
    ignored("reward_model.overlong_buffer.log", "reward/overlong is always among the metrics"),
    *(
        ignored(name, "how many score at once is the reward service's")
        for name in (
            "reward.num_workers",
            "reward_model.num_workers",
            "reward_model.launch_reward_fn_async",
            "reward_model.use_reward_loop",
            "reward_model.strategy",
            "reward_model.reward_loop_source",
            "reward_model.reward_loop_module_path",
            "reward_model.reward_loop_class_name",
        )
    ),
    accepted(
        "reward.reward_manager.source",
        "text",
        "register",
        ["register"],
        "reward managers of one's own are verifiers here",
    ),
    ignored("reward.reward_manager.module.*", _OFF),
    *(
        ignored(f"{prefix}sandbox_fusion.*", "programs run in the reward service's own sandbox")
        for prefix in ("", "reward.", "reward_model.")
    ),
    *(
        ignored(name, "the reward model's own settings are in reward.model")
        for name in (
            "reward.reward_model.*",
            "reward_model.model.*",
            "reward_model.rollout.*",
            "reward_model.megatron.*",
            "reward_model.profiler.*",
            "reward_model.micro_batch_size",
            "reward_model.micro_batch_size_per_gpu",
            "reward_model.max_length",
            "reward_model.use_dynamic_bsz",
            "reward_model.forward_max_token_len_per_gpu",
            "reward_model.ulysses_sequence_parallel_size",
            "reward_model.enable_resource_pool",
            "reward_model.n_gpus_per_node",
            "reward_model.nnodes",
        )
    ),
]
