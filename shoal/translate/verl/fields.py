"""verl's overrides, one row each."""

from typing import Any

from shoal.translate.shared.field import (
    AGGREGATION,
    Fate,
    Field,
    Kind,
    accepted,
    choice,
    composed,
    each,
    ignored,
    mapped,
    played,
    refused,
    rows,
)
from shoal.translate.verl.names import ACTOR, MODEL, OPTIM, ROLLOUT

_CRITIC = "GRPO has no critic"
_BATCHES = "gradients do not depend on micro-batches; rows are packed to learner.pack_tokens"
_SHARDS = "the learner uses DeepSpeed; [learner] decides how its ranks share the model"
_ENGINE = "a detail of the engine"
_BY_STEPS = "train steps in verl, optimizer steps here"


def _earlier(name: str) -> list[str]:
    return [f"reward_model.overlong_buffer.{name}", f"custom_reward_function.overlong_buffer.{name}"]


OVERLONG: tuple[tuple[str, Kind, Any, list[str]], ...] = (
    ("overlong_buffer_cfg.enable", "flag", False, _earlier("enable")),
    ("overlong_buffer_cfg.len", "integer", 0, _earlier("len")),
    ("overlong_buffer_cfg.penalty_factor", "number", 0.0, _earlier("penalty_factor")),
    ("max_resp_len", "integer", None, []),
)
"""Name, kind, default and aliases of the options of DAPO's reward manager."""
_CUSTOM: tuple[tuple[str, Kind, Any, str], ...] = (
    ("path", "text", None, "reward.custom data.sources"),
    ("name", "text", "compute_score", "reward.custom"),
    ("reward_kwargs", "table", None, "reward.custom"),
)

FIELDS: list[Field] = rows(
    composed("data.train_files", "texts", None, "data.sources"),
    composed("data.val_files", "texts", None, "evaluation.sources"),
    composed("data.val_max_samples", "integer", -1, "evaluation.num_prompts"),
    mapped("data.train_batch_size", "integer", 1024, "grpo.groups_per_step"),
    ignored("data.val_batch_size", "the engine schedules held-out questions"),
    ignored("data.gen_batch_size", "grpo.active_sampling samples the missing groups"),
    mapped("data.max_prompt_length", "integer", 512, "data.max_prompt_tokens"),
    mapped("data.max_response_length", "integer", 512, "sampling.max_completion_tokens"),
    mapped("data.shuffle", "flag", True, "data.shuffle"),
    mapped("data.seed", "integer", None, "run.seed"),
    composed("data.prompt_key", "text", "prompt", "data.sources"),
    composed("data.reward_fn_key", "text", "data_source", "data.sources reward.remap"),
    ignored("data.filter_overlong_prompts", "prompts longer than data.max_prompt_tokens are left out, and counted"),
    ignored("data.filter_overlong_prompts_workers", "the coordinator reads the data"),
    composed("data.truncation", "text", "error", "", why="prompts that are too long are left out, never cut"),
    ignored("data.return_raw_chat", "the ledger keeps prompts as text"),
    ignored("data.dataloader_num_workers", "the coordinator reads the data"),
    *(
        Field(f"data.{name}_key", "text", f"{name}s", Fate.NOT_YET, accepts=(None,), why="vision")
        for name in ("image", "video", "audio")
    ),
    Field(
        "data.custom_cls.path",
        "text",
        None,
        Fate.REFUSED,
        to=("data.sources",),
        accepts=(None,),
        why="Shoal reads the columns of files: save what the class returns as JSONL or Parquet",
    ),
    composed("algorithm.adv_estimator", "text", "gae", "advantage.baseline advantage.scale"),
    composed("algorithm.gdpo_reward_keys", "texts", None, "reward.custom data.sources"),
    composed("algorithm.gdpo_reward_weights", "numbers", None, "reward.weights"),
    composed("algorithm.norm_adv_by_std_in_grpo", "flag", True, "advantage.scale"),
    mapped("algorithm.gamma", "number", 1.0, "advantage.discount"),
    ignored("algorithm.lam", _CRITIC),
    composed("algorithm.use_kl_in_reward", "flag", False, "kl.place"),
    composed("algorithm.kl_penalty", "text", "kl", "kl.estimator"),
    composed("algorithm.kl_ctrl.type", "text", "fixed", "kl.target"),
    composed("algorithm.kl_ctrl.kl_coef", "number", 0.001, "kl.coef"),
    composed("algorithm.kl_ctrl.horizon", "integer", 10_000, "kl.horizon"),
    composed("algorithm.kl_ctrl.target_kl", "number", 0.1, "kl.target"),
    mapped("algorithm.filter_groups.enable", "flag", False, "grpo.active_sampling"),
    composed("algorithm.filter_groups.metric", "text", None, "grpo.filter_groups_by"),
    composed("algorithm.filter_groups.max_num_gen_batches", "integer", 0, "grpo.max_refills"),
    composed("algorithm.rollout_correction.rollout_is", "text", None, "correction.weight"),
    composed("algorithm.rollout_correction.rollout_is_threshold", "any", "2.0", "correction.weight_high"),
    composed("algorithm.rollout_correction.rollout_is_batch_normalize", "flag", False, "correction.normalize"),
    composed("algorithm.rollout_correction.rollout_rs", "text", None, "correction.filters"),
    composed("algorithm.rollout_correction.rollout_rs_threshold", "text", None, "correction.filters"),
    composed("algorithm.rollout_correction.bypass_mode", "flag", False, "loss.baseline"),
    composed(f"{MODEL}.path", "text", None, "model.path"),
    mapped(f"{MODEL}.tokenizer_path", "text", None, "model.tokenizer", aliases=["data.tokenizer"]),
    mapped("data.apply_chat_template_kwargs", "table", None, "model.chat_template_kwargs", lambda value: value or None),
    mapped(f"{MODEL}.custom_chat_template", "text", None, "model.chat_template"),
    ignored(f"{MODEL}.use_remove_padding", _BATCHES),
    mapped(f"{MODEL}.enable_gradient_checkpointing", "flag", True, "learner.gradient_checkpointing"),
    ignored(f"{MODEL}.enable_activation_offload", "activations are recomputed, not offloaded"),
    ignored(f"{MODEL}.use_fused_kernels", "learner.logits_chunk_tokens splits the logits"),
    ignored(f"{MODEL}.use_shm", "each service reads the model from its path"),
    composed(
        f"{MODEL}.trust_remote_code", "flag", False, "model.trust_remote_code", aliases=["data.trust_remote_code"]
    ),
    composed(f"{MODEL}.lora_rank", "integer", 0, "learner.lora"),
    composed(f"{MODEL}.lora_alpha", "integer", 16, "learner.lora"),
    composed(f"{MODEL}.target_modules", "texts", ["all-linear"], "learner.lora"),
    composed(f"{ACTOR}.ppo_mini_batch_size", "integer", 256, "grpo.num_mini_batches"),
    *each(ignored(f"{ACTOR}.", _BATCHES), "ppo_micro_batch_size ppo_micro_batch_size_per_gpu"),
    *each(
        ignored(f"{ROLLOUT}.log_prob_", _BATCHES),
        "micro_batch_size micro_batch_size_per_gpu use_dynamic_bsz max_token_len_per_gpu",
    ),
    composed(f"{ACTOR}.use_dynamic_bsz", "flag", False, "learner.pack_tokens"),
    composed(f"{ACTOR}.ppo_max_token_len_per_gpu", "integer", 16384, "learner.pack_tokens"),
    mapped(f"{ACTOR}.grad_clip", "number", 1.0, "learner.max_grad_norm", aliases=[f"{OPTIM}.clip_grad"]),
    composed(f"{ACTOR}.clip_ratio", "number", 0.2, "loss.clip_low loss.clip_high"),
    composed(f"{ACTOR}.clip_ratio_low", "number", 0.2, "loss.clip_low"),
    composed(f"{ACTOR}.clip_ratio_high", "number", 0.2, "loss.clip_high"),
    composed(f"{ACTOR}.clip_ratio_c", "number", 3.0, "loss.dual_clip loss.dppo_ratio_cap"),
    mapped(f"{ACTOR}.loss_agg_mode", "text", "token-mean", "loss.aggregation", AGGREGATION),
    refused(
        f"{ACTOR}.use_token_level_loss",
        "flag",
        None,
        "an earlier name: give actor.loss_agg_mode=seq-mean-token-mean",
        accepts=[None, True],
    ),
    composed(f"{ACTOR}.loss_scale_factor", "number", None, "loss.denominator"),
    mapped(f"{ACTOR}.entropy_coeff", "number", 0.0, "loss.entropy_coef"),
    ignored(f"{ACTOR}.calculate_entropy", "entropy is always measured"),
    composed(f"{ACTOR}.tau_pos", "number", 1.0, "loss.sapo_tau_positive"),
    composed(f"{ACTOR}.tau_neg", "number", 1.05, "loss.sapo_tau_negative"),
    composed(
        f"{ACTOR}.tis_imp_ratio_cap", "number", -1.0, "correction.weight correction.weight_high", why="an earlier name"
    ),
    composed(f"{ACTOR}.use_kl_loss", "flag", False, "kl.coef"),
    composed(f"{ACTOR}.kl_loss_coef", "number", 0.001, "kl.coef"),
    composed(f"{ACTOR}.kl_loss_type", "text", "low_var_kl", "kl.estimator kl.gradient"),
    mapped(f"{ACTOR}.ppo_epochs", "integer", 1, "grpo.num_epochs"),
    accepted(
        f"{ACTOR}.shuffle", "flag", False, "mini-batches are whole groups, in the order in which they were issued"
    ),
    mapped(
        f"{ACTOR}.ulysses_sequence_parallel_size",
        "integer",
        1,
        "learner.sequence_parallel_size",
        aliases=[f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size"],
    ),
    composed(f"{ACTOR}.policy_loss.loss_mode", "text", "vanilla", "loss.objective"),
    mapped(f"{OPTIM}.lr", "number", 1e-6, "learner.learning_rate"),
    composed(f"{OPTIM}.lr_warmup_steps", "integer", -1, "learner.warmup_steps", why=_BY_STEPS),
    composed(f"{OPTIM}.lr_warmup_steps_ratio", "number", 0.0, "learner.warmup_ratio"),
    composed(
        f"{OPTIM}.lr_scheduler_type", "text", "constant", "learner.lr_scheduler", aliases=[f"{OPTIM}.warmup_style"]
    ),
    composed(f"{OPTIM}.min_lr_ratio", "number", 0.0, "learner.lr_min_ratio"),
    composed(f"{OPTIM}.num_cycles", "number", 0.5, "learner.lr_num_cycles"),
    mapped(f"{OPTIM}.weight_decay", "number", 0.01, "learner.weight_decay"),
    composed(f"{OPTIM}.betas", "numbers", [0.9, 0.999], "learner.adam_beta1 learner.adam_beta2"),
    ignored(f"{OPTIM}.total_training_steps", "the schedule follows run.num_steps"),
    composed(f"{ACTOR}.fsdp_config.param_offload", "flag", False, "learner.offload_parameters"),
    mapped(f"{ACTOR}.fsdp_config.optimizer_offload", "flag", False, "learner.offload_optimizer"),
    mapped(
        f"{ACTOR}.fsdp_config.dtype",
        "text",
        "bfloat16",
        "learner.compute_dtype",
        choice({"bfloat16": "auto", "bf16": "auto", "float32": "float32", "fp32": "float32"}),
    ),
    ignored(f"{ACTOR}.fsdp_config.model_dtype", "the learner updates float32 weights, whatever it computes with"),
    ignored(
        f"{ACTOR}.fsdp_config.* {ACTOR}.megatron.* {ACTOR}.strategy model_engine {ACTOR}.fsdp_size",
        _SHARDS,
    ),
    ignored(f"{ACTOR}.use_torch_compile", "the learner's model is not compiled"),
    ignored(f"{ACTOR}.checkpoint.*", "checkpoints hold what a resume needs"),
    mapped(f"{ROLLOUT}.n", "integer", 1, "grpo.group_size"),
    mapped(f"{ROLLOUT}.temperature", "number", 1.0, "sampling.temperature"),
    mapped(f"{ROLLOUT}.top_p", "number", 1.0, "sampling.top_p"),
    mapped(f"{ROLLOUT}.top_k", "integer", -1, "sampling.top_k", lambda value: max(0, value or 0)),
    ignored(f"{ROLLOUT}.name", "the engine is vLLM; [generator] has its settings"),
    accepted(f"{ROLLOUT}.do_sample", "flag", True, "completions are sampled"),
    accepted(f"{ROLLOUT}.ignore_eos", "flag", False, "completions end at their end-of-sequence token"),
    mapped(f"{ROLLOUT}.tensor_model_parallel_size", "integer", 2, "generator.tensor_parallel_size"),
    mapped(f"{ROLLOUT}.pipeline_model_parallel_size", "integer", 1, "generator.pipeline_parallel_size"),
    mapped(f"{ROLLOUT}.gpu_memory_utilization", "number", 0.5, "generator.gpu_memory_utilization"),
    mapped(f"{ROLLOUT}.max_num_seqs", "integer", 256, "generator.max_num_seqs"),
    mapped(f"{ROLLOUT}.max_model_len", "integer", None, "generator.max_model_len"),
    mapped(f"{ROLLOUT}.enforce_eager", "flag", False, "generator.enforce_eager"),
    mapped(f"{ROLLOUT}.dtype", "text", "bfloat16", "generator.dtype"),
    played(f"{ROLLOUT}.multi_turn.enable", "flag", default=False),
    composed(f"{ROLLOUT}.val_kwargs.n", "integer", 1, "evaluation.samples_per_prompt"),
    composed(f"{ROLLOUT}.val_kwargs.temperature", "number", 0.0, "evaluation.temperature"),
    composed(f"{ROLLOUT}.val_kwargs.top_p", "number", 1.0, "evaluation.top_p"),
    composed(f"{ROLLOUT}.val_kwargs.top_k", "integer", -1, "evaluation.top_k"),
    ignored(f"{ROLLOUT}.val_kwargs.do_sample", "verl's engines do not read it: temperature 0 is greedy"),
    *each(
        ignored(f"{ROLLOUT}.", _ENGINE),
        "mode prompt_length response_length free_cache_engine load_format max_num_batched_tokens "
        "enable_chunked_prefill enable_prefix_caching layered_summon disable_log_stats calculate_log_probs agent.* "
        "engine_kwargs.*",
    ),
    ignored("actor_rollout_ref.hybrid_engine", "generators and learners are separate services"),
    composed("trainer.total_epochs", "integer", 30, "run.total_epochs"),
    composed("trainer.total_training_steps", "integer", None, "run.num_steps"),
    composed("trainer.n_gpus_per_node", "integer", 8, "launch.num_learner_ranks"),
    composed("trainer.nnodes", "integer", 1, "launch.num_learner_ranks"),
    composed("trainer.save_freq", "integer", -1, "checkpoint.every_steps"),
    composed("trainer.test_freq", "integer", -1, "evaluation.every_steps"),
    composed("trainer.val_before_train", "flag", True, "evaluation.on_start"),
    refused("trainer.val_only", "flag", False, "a run trains; evaluate with `shoal train --set run.num_steps=1`"),
    composed("trainer.experiment_name", "text", "gsm8k", "run.name"),
    composed("trainer.project_name", "text", "verl_examples", "tracking.wandb_project"),
    composed("trainer.logger", "texts", ["console", "wandb"], "tracking.wandb tracking.tensorboard tracking.trackio"),
    composed(
        "trainer.log_val_generations",
        "integer",
        0,
        "tracking.completions_every_steps",
        aliases=["trainer.val_generations_to_log_to_wandb"],
    ),
    *each(
        ignored("trainer.", "the ledger keeps the text and scores of every group"),
        "rollout_data_dir validation_data_dir",
    ),
    *each(ignored("trainer.", "Shoal creates the run's folder below --data-dir"), "default_local_dir default_hdfs_dir"),
    *each(ignored("trainer.", "`shoal train --resume` continues a run"), "resume_mode resume_from_path"),
    accepted("trainer.critic_warmup", "integer", 0, "the policy is updated from the first step", accepts=[1]),
    ignored("trainer.balance_batch", "rows are always balanced over the ranks"),
    ignored("trainer.device", "each service finds its own device"),
    ignored("trainer.use_legacy_worker_impl", "a detail of verl's workers"),
    mapped("trainer.max_actor_ckpt_to_keep", "integer", None, "checkpoint.keep_last"),
    ignored("trainer.max_critic_ckpt_to_keep critic.*", _CRITIC),
    ignored("ray_kwargs.* ray_init.*", "Shoal does not use Ray"),
    ignored("hydra.*", "the configuration is one file"),
    composed("reward_model.enable", "flag", False, "reward.model", aliases=["reward.reward_model.enable"]),
    composed("reward_model.model.path", "text", None, "reward.model", aliases=["reward.reward_model.model_path"]),
    composed("reward_model.reward_manager", "text", "naive", "reward.overlong", aliases=["reward.reward_manager.name"]),
    *(
        composed(
            f"reward_model.reward_kwargs.{name}",
            kind,
            default,
            "reward.overlong",
            aliases=[f"reward.reward_kwargs.{name}", *aliases],
        )
        for name, kind, default, aliases in OVERLONG
    ),
    *(
        composed(f"custom_reward_function.{name}", kind, default, to, aliases=[f"reward.custom_reward_function.{name}"])
        for name, kind, default, to in _CUSTOM
    ),
)
