"""ROLL's settings of the algorithm, one row each."""

from shoal.translate.shared.field import AGGREGATION, Field, Kind, composed, each, ignored, mapped, refused, rows

_CRITIC = "GRPO has no critic"
_OLDER = "an older switch, which ROLL no longer reads: "

_CHOSEN = "to choose rows, set labels, fraction and count in data.sources"
_OF_VARIANTS: tuple[tuple[str, Kind, object, str], ...] = (
    ("tis_lower_bound", "number", 0.0, "loss.ratio_low"),
    ("tis_upper_bound", "number", 1.0, "loss.ratio_high"),
    ("topr_positive_weight", "number", 1.0, "loss.topr_positive_weight"),
    ("topr_negative_weight", "number", 1.0, "loss.topr_negative_weight"),
    ("cispo_epsilon_low", "number", 0.1, "loss.clip_low"),
    ("cispo_epsilon_high", "number", 0.1, "loss.clip_high"),
    ("cispo_use_unified_mask", "flag", False, "loss.cispo_unified_mask"),
    ("kimi15_tau", "number", 0.1, "loss.kimi15_tau"),
)
"""The options of the variants of the policy gradient."""
_FILTERS = (("ratio", 0.8, 1.2), ("diff", -0.2, 0.2), ("ratio_seq", 0.8, 1.2), ("diff_seq", -0.2, 0.2))
OLDER_FILTERS = tuple(name for name, _, _ in _FILTERS)
"""The older fields train_infer_NAME_mask, each with its two thresholds."""

PIPELINE: list[Field] = rows(
    composed("pretrain", "text", None, "model.path"),
    ignored("reward_pretrain", "verifiers score; a reward model is loaded only if reward.model names one"),
    mapped("rollout_batch_size", "integer", 128, "grpo.groups_per_step"),
    mapped("num_return_sequences_in_group", "integer", 1, "grpo.group_size"),
    mapped("prompt_length", "integer", 1024, "data.max_prompt_tokens"),
    composed("response_length sequence_length", "integer", None, "sampling.max_completion_tokens"),
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
        AGGREGATION,
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
    refused("whiten_rewards", "flag", False, "Shoal does not whiten rewards per token: give whiten_advantages instead"),
    mapped("gamma", "number", 1.0, "advantage.discount"),
    ignored("lambd value_clip critic_warmup critic_epochs critic.* critic", _CRITIC),
    composed("pg_clip", "number", 0.2, "loss.clip_low loss.clip_high loss.dual_clip"),
    composed("use_pg_clip_range", "flag", False, "loss.clip_low loss.clip_high"),
    composed("pg_clip_low", "number", 0.2, "loss.clip_low"),
    composed("pg_clip_high", "number", 0.2, "loss.clip_high"),
    composed("importance_sampling", "text", "token", "loss.objective", why="seq is GSPO"),
    composed("pg_variant", "text", "ppo", "loss.objective", aliases=["actor_train.pg_variant"]),
    composed("use_policy_loss_type", "text", "PPO", "loss.objective"),
    refused("use_topr_loss", "flag", False, "a switch that ROLL does not read: give actor_train.pg_variant topr"),
    *(composed(name, kind, default, to, aliases=[f"actor_train.{name}"]) for name, kind, default, to in _OF_VARIANTS),
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
    refused("rl_loss_coef", "number", 1.0, "give 1: scale the learning rate instead of the whole loss"),
    mapped("difficulty_loss_weight", "flag", False, "loss.difficulty_weight"),
    mapped("length_loss_weight", "flag", False, "loss.length_weight"),
    mapped("max_len_mask", "flag", False, "grpo.mask_truncated_completions"),
    composed("difficulty_mask", "flag", False, "grpo.difficulty_low grpo.difficulty_high"),
    composed("difficulty_low_threshold", "number", 0.0, "grpo.difficulty_low"),
    composed("difficulty_high_threshold", "number", 1.0, "grpo.difficulty_high"),
    composed("error_max_len_clip", "flag", False, "grpo.max_wrong_completion_tokens"),
    composed("error_max_len_threshold", "number", 1e10, "grpo.max_wrong_completion_tokens"),
    composed("async_generation_ratio", "number", 0.0, "grpo.max_staleness", why="rounded up"),
    composed("is_use_additional_prompts", "flag", False, "grpo.active_sampling", aliases=["use_additional_prompts"]),
    composed("dynamic_sampling", "flag", False, "grpo.active_sampling"),
    ignored("max_additional_running_prompts", "grpo.max_staleness bounds the groups in flight"),
    *each(
        ignored("val_", "ROLL reads validation.generating_args instead, as evaluation.* does here"), "greedy n_sample"
    ),
    composed("eval_steps", "integer", 10, "evaluation.every_steps"),
    composed("skip_initial_validation", "flag", False, "evaluation.on_start"),
    *each(composed("val_", "integer", None, "evaluation.max_completion_tokens"), "prompt_length sequence_length"),
    composed("global_template", "text", None, "model.chat_template model.chat_template_kwargs"),
    refused(
        "tag_to_template tag_to_template.*", "any", None, "one chat template renders all prompts: model.chat_template"
    ),
    refused("dataset_filter.source", "text", None, _CHOSEN, accepts=(None,)),
    *each(refused("dataset_filter.", "number", None, _CHOSEN, accepts=(None,)), "min_difficulty max_difficulty"),
    refused("dataset_filter.num_samples", "integer", None, _CHOSEN, accepts=(None, 0)),
    mapped(
        "max_grad_norm", "number", 1.0, "learner.max_grad_norm", aliases=["actor_train.training_args.max_grad_norm"]
    ),
    refused("l2", "number", 0.0, "the loss has no penalty for the norm of the weights: set learner.weight_decay"),
    refused("use_reward_scaling use_reward_norm", "flag", False, _OLDER + "give norm_mean_type and norm_std_type"),
    refused("add_len_reward", "flag", False, _OLDER + "set reward.length"),
    ignored(
        "enable_reference",
        "a reference model that no loss uses changes nothing; kl.reference = always loads it for metrics",
    ),
    ignored(
        "enable_old_logprobs_recompute",
        "loss.baseline = proximal always uses the learner's log-probabilities before the first step",
    ),
    composed("force_disable_old_logprobs_recompute", "flag", False, "loss.baseline"),
    refused(
        "mask_type",
        "text",
        "loss",
        "masked completions count in the statistics of their group, as with mask_type loss",
    ),
    ignored("balance_length", "rows are packed to learner.pack_tokens and balanced over the ranks"),
    refused("minibatch_data_iter_num", "integer", 1, "give ppo_epochs, which repeats all mini-batches"),
    composed("train_infer_correction.is_weight.enabled", "flag", False, "correction.weight"),
    composed("train_infer_correction.is_weight.weight_type", "text", "token", "correction.weight"),
    composed("train_infer_correction.is_weight.upper_bound", "number", 1.2, "correction.weight_high"),
    composed("train_infer_correction.is_weight.detach", "flag", True, "correction.weight"),
    composed("train_infer_correction.filters", "any", None, "correction.filters"),
    composed("use_rollout_importance_sampling_ratio", "flag", False, "correction.weight"),
    composed("rollout_importance_sampling_ratio_upper_bound", "number", 1.2, "correction.weight_high"),
    *(composed(f"train_infer_{name}_mask", "flag", False, "correction.filters") for name in OLDER_FILTERS),
    *(composed(f"train_infer_{name}_threshold_low", "number", low, "correction.filters") for name, low, _ in _FILTERS),
    *(composed(f"train_infer_{name}_threshold_high", "number", end, "correction.filters") for name, _, end in _FILTERS),
)
