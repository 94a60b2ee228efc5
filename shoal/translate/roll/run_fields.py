"""ROLL's settings of the run (name, length, folders, tracking, placement), one row each."""

from shoal.translate.shared.field import Field, composed, each, ignored, mapped, not_yet, outside, played, refused

PLACES = "the deployment decides where processes run; `shoal train` starts all of them on one machine: launch.*"
METRICS = "every run writes metrics.jsonl"
_FOLDER = "Shoal creates the run's folder below --data-dir"
_DEADLINES = "each call has its own deadline: coordinator.*_timeout_s and weights.timeout_s"
_REQUESTS = "the engine admits as many requests as its cache holds: generator.max_num_seqs"
_OWN_REQUEST = "each completion is always a request of its own"
_PROFILE = "measures ROLL's own processes; docs/observability.md has Shoal's traces and metrics"
_PUBLISH = "weights go to the generators by a broadcast: weights.*"
_OFFLOAD = (
    "learner.offload_optimizer, learner.offload_parameters and generator.sleep_while_training decide what is offloaded"
)
_MOCK = "records and replays ROLL's own rollouts; `shoal run rollouts` shows those of a run"

RUN: list[Field] = [
    composed("exp_name", "text", "rlvr", "run.name"),
    mapped("seed", "integer", 42, "run.seed"),
    mapped("max_steps", "integer", 500, "run.num_steps"),
    composed("save_steps", "integer", 50, "checkpoint.every_steps", why="0, never, becomes the length of the run"),
    composed("max_ckpt_to_keep", "integer", 0, "checkpoint.keep_last", why="0 keeps all"),
    composed("track_with", "texts", ["tensorboard"], "tracking.wandb tracking.tensorboard tracking.trackio"),
    composed("tracker_kwargs", "table", None, "tracking.wandb tracking.wandb_project", why="mode and project"),
    *each(ignored("", METRICS), "logging_steps logging_dir tracker_kwargs.*"),
    *each(ignored("", METRICS), "save_logging_board_dir report_length_and_rewards length_profiler_dir"),
    *each(ignored("", _FOLDER), "output_dir base_dir checkpoint_config checkpoint_config.* dump_run_name"),
    ignored("rollout_dump_dir", "the run's ledger keeps every rollout: `shoal run rollouts`"),
    *each(ignored("", _PROFILE), "profiler_timeline profiler_memory profiler_output_dir"),
    ignored("otlp_output_dir", "docs/observability.md has Shoal's traces and metrics"),
    *each(ignored("", PLACES), "num_gpus_per_node num_nodes local_rank system_envs system_envs.* hydra hydra.*"),
    ignored("defaults", "ROLL's own deepspeed_zero files are known by their names; learner.zero_stage"),
    ignored("model_download_type", "every service finds model.path on its own machine, or at the Hugging Face hub"),
    *each(ignored("", _DEADLINES), "rpc_timeout backend_timeout"),
    *each(ignored("", "`shoal train --resume` continues a run"), "resume_from_checkpoint auto_resume"),
    *each(ignored("", _REQUESTS), "max_running_requests router_args router_args.* val_batch_size"),
    *each(ignored("", _OWN_REQUEST), "generate_opt_level is_num_return_sequences_expand"),
    *each(ignored("", _OFFLOAD), "is_offload_states is_offload_optimizer_states_in_train_step offload_backend"),
    *each(ignored("", _PUBLISH), "model_update_buffer_size_mb transfer_backend transfer_backend.*"),
    *each(ignored("", _MOCK), "rollout_mock rollout_mock.*"),
    refused(
        "user_defined_rollout_loop_cls",
        "text",
        None,
        "a rollout loop of one's own is code of ROLL's; a custom verifier is one of Shoal's (docs/rewards.md)",
        accepts=(None, "roll.distributed.scheduler.user_defined_rollout_loop.UserDefinedRolloutLoop"),
    ),
    *each(
        ignored("", "an older field, which ROLL does not read any more"),
        "early_stop_steps reward_filter_mean_threshold generate_redundancy_num difficulty_high train_batch_size "
        "num_eval_prompts",
    ),
    # Pipelines other than RLVR.
    *each(played("", "any"), "custom_envs train_env_manager val_env_manager"),
    mapped("max_actions_per_traj", "integer", None, "episodes.max_turns"),
    mapped("max_tokens_per_step", "integer", None, "episodes.max_turn_tokens"),
    refused(
        "enable_response_mask",
        "any",
        None,
        "tokens that the policy did not sample are never trained on",
        accepts=[None, True],
    ),
    *each(
        not_yet("", "any", None, "distillation"),
        "teacher student student_train student_infer pure_opd_pipeline_type is_pure_opd use_opd opd_kl_coef "
        "opd_token_kld_clip opsd_mode opsd_solution_key opsd_teacher_template opsd_max_solution_length",
    ),
    *each(ignored("", "only the pipeline of vision models reads it"), "vlm_filter vlm_filter.*"),
    outside(
        "reward_system_config", "any", None, "a reward system of one's own is a server of verifiers: reward.servers"
    ),
]
