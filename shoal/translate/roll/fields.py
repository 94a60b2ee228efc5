"""ROLL's settings of the whole pipeline, one row each."""

from shoal.translate.shared.field import Field, choice, composed, ignored, mapped, refused

_CRITIC = "GRPO has no critic"
_PLACES = "the deployment decides where processes run; `shoal train` starts all of them on one machine"
_TRACKS = "every run writes metrics.jsonl"

PIPELINE: list[Field] = [
    composed("track_with", "texts", ["stdout"], "tracking.wandb tracking.tensorboard"),
    composed("exp_name", "text", "rlvr", "run.name"),
    mapped("seed", "integer", 42, "run.seed"),
    mapped("max_steps", "integer", 500, "run.num_steps"),
    mapped("save_steps", "integer", 50, "checkpoint.every_steps", lambda n: max(1, n or 1)),
    composed("eval_steps", "integer", 1, "evaluation.every_steps"),
    *(ignored(name, _TRACKS) for name in ("logging_steps", "logging_dir", "tracker_kwargs", "tracker_kwargs.*")),
    *(
        ignored(name, "Shoal creates the run's folder below --data-dir")
        for name in ("output_dir", "checkpoint_config", "checkpoint_config.*")
    ),
    *(
        ignored(name, _PLACES)
        for name in ("num_gpus_per_node", "num_nodes", "system_envs", "system_envs.*", "hydra", "hydra.*", "defaults")
    ),
    ignored("resume_from_checkpoint", "`shoal train --resume` continues a run"),
    composed("pretrain", "text", None, "model.path"),
    ignored("reward_pretrain", "verifiers score; a reward model is loaded only if reward.model names one"),
    mapped("rollout_batch_size", "integer", 128, "grpo.groups_per_step"),
    mapped("num_return_sequences_in_group", "integer", 1, "grpo.group_size"),
    mapped("prompt_length", "integer", 1024, "data.max_prompt_tokens"),
    composed("response_length", "integer", None, "sampling.max_completion_tokens"),
    composed("sequence_length", "integer", None, "sampling.max_completion_tokens"),
    composed("adv_estimator", "text", "gae", "advantage.baseline advantage.scale"),
    mapped("ppo_epochs", "integer", 1, "grpo.num_epochs"),
    composed("use_kl_loss", "flag", False, "kl.coef kl.place"),
    composed("kl_loss_coef", "number", 0.0, "kl.coef"),
    composed("add_token_level_kl", "flag", False, "kl.coef kl.place"),
    composed("kl_penalty", "text", "kl", "kl.estimator"),
    composed("init_kl_coef", "number", 0.2, "kl.coef"),
    composed("target_kl", "number", None, "kl.target"),
    composed("kl_horizon", "integer", 10_000, "kl.horizon"),
    mapped(
        "loss_agg_mode",
        "text",
        "seq-mean-token-mean",
        "loss.aggregation",
        choice(
            {
                name: name
                for name in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
            }
        ),
        why="seq-mean-token-sum-norm also divides by the batch, which ROLL omits",
    ),
    mapped("whiten_advantages", "flag", False, "advantage.whiten"),
    mapped("advantage_clip", "number", None, "advantage.clip"),
    composed("dual_clip_loss", "flag", False, "loss.dual_clip", why="1 + 2 x pg_clip"),
    mapped("reward_clip", "number", None, "advantage.reward_clip"),
    composed("reward_norm", "text", None, "advantage.baseline advantage.scale"),
    composed("reward_shift", "flag", False, "advantage.scale"),
    composed("reward_scale", "flag", False, "advantage.baseline"),
    composed("norm_mean_type", "text", None, "advantage.baseline"),
    composed("norm_std_type", "text", None, "advantage.scale"),
    refused(
        "whiten_rewards", "flag", False, "rewards are not whitened per token; whiten_advantages whitens the advantages"
    ),
    mapped("gamma", "number", 1.0, "advantage.discount"),
    ignored("lambd", _CRITIC),
    ignored("value_clip", _CRITIC),
    ignored("critic_warmup", _CRITIC),
    ignored("critic.*", _CRITIC),
    ignored("critic", _CRITIC),
    composed("pg_clip", "number", 0.2, "loss.clip_low loss.clip_high loss.dual_clip"),
    composed("use_pg_clip_range", "flag", False, "loss.clip_low loss.clip_high"),
    composed("pg_clip_low", "number", 0.2, "loss.clip_low"),
    composed("pg_clip_high", "number", 0.2, "loss.clip_high"),
    composed("importance_sampling", "text", "token", "loss.objective", why="seq is GSPO"),
    composed("pg_variant", "text", "ppo", "loss.objective", aliases=["actor_train.pg_variant"]),
    composed("use_policy_loss_type", "text", "PPO", "loss.objective"),
    composed("use_topr_loss", "flag", False, "loss.objective"),
    composed("tis_lower_bound", "number", 0.0, "loss.ratio_low", aliases=["actor_train.tis_lower_bound"]),
    composed("tis_upper_bound", "number", 1.0, "loss.ratio_high", aliases=["actor_train.tis_upper_bound"]),
    composed(
        "topr_positive_weight", "number", 1.0, "loss.topr_positive_weight", aliases=["actor_train.topr_positive_weight"]
    ),
    composed(
        "topr_negative_weight", "number", 1.0, "loss.topr_negative_weight", aliases=["actor_train.topr_negative_weight"]
    ),
    composed("cispo_epsilon_low", "number", 0.1, "loss.clip_low", aliases=["actor_train.cispo_epsilon_low"]),
    composed("cispo_epsilon_high", "number", 0.1, "loss.clip_high", aliases=["actor_train.cispo_epsilon_high"]),
    composed(
        "cispo_use_unified_mask",
        "flag",
        False,
        "loss.cispo_unified_mask",
        aliases=["actor_train.cispo_use_unified_mask"],
    ),
    composed("kimi15_tau", "number", 0.1, "loss.kimi15_tau", aliases=["actor_train.kimi15_tau"]),
    refused(
        "postive_loss_coef",
        "number",
        0.0,
        "an older switch: give pg_variant topr",
        accepts=[0.0],
        aliases=["positive_loss_coef"],
    ),
    refused("use_topr_neg_loss_coef", "number", 0.0, "an older switch: give pg_variant topr", accepts=[0.0]),
    mapped("entropy_loss_coef", "number", 0.0, "loss.entropy_coef"),
    refused("rl_loss_coef", "number", 1.0, "a factor of the whole loss belongs to the learning rate: use 1"),
    mapped("difficulty_loss_weight", "flag", False, "loss.difficulty_weight"),
    mapped("length_loss_weight", "flag", False, "loss.length_weight"),
    mapped("max_len_mask", "flag", False, "grpo.mask_truncated_completions"),
    composed("difficulty_mask", "flag", False, "grpo.difficulty_low grpo.difficulty_high"),
    composed("difficulty_low_threshold", "number", 0.0, "grpo.difficulty_low"),
    composed("difficulty_high_threshold", "number", 1.0, "grpo.difficulty_high"),
    composed("error_max_len_clip", "flag", False, "grpo.max_wrong_completion_tokens"),
    composed("error_max_len_threshold", "number", 1e10, "grpo.max_wrong_completion_tokens"),
    ignored("difficulty_high", "ROLL has no such field; it is called difficulty_high_threshold"),
    composed("async_generation_ratio", "number", 0.0, "grpo.max_staleness", why="rounded up"),
    composed("is_use_additional_prompts", "flag", False, "grpo.active_sampling", aliases=["use_additional_prompts"]),
    composed("dynamic_sampling", "flag", False, "grpo.active_sampling"),
    ignored("max_additional_running_prompts", "grpo.max_staleness bounds the groups in flight"),
    ignored("max_running_requests", "the engine admits as many requests as its cache holds: generator.max_num_seqs"),
    ignored("generate_opt_level", "each completion is always a request of its own"),
    ignored("is_num_return_sequences_expand", "each completion is always a request of its own"),
    ignored("val_greedy", "[evaluation] has the settings of evaluation"),
    ignored("val_n_sample", "[evaluation] has the settings of evaluation"),
]
