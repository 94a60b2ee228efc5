"""ROLL's settings of the run (name, length, folders, tracking, placement), one row each."""

from shoal.translate.shared.field import Field, composed, ignored, mapped, not_yet, outside, played, refused, rows

PLACES = "the deployment decides where processes run; `shoal train` starts all of them on one machine: launch.*"
METRICS = "every run writes metrics.jsonl"
_FOLDER = "Shoal creates the run's folder below --data-dir"
_DEADLINES = "each call has its own deadline: coordinator.*_timeout_s and weights.timeout_s"
_REQUESTS = "the engine admits as many requests as its cache holds: generator.max_num_seqs"
_OWN_REQUEST = "each completion is always a request of its own"
_PROFILE = "measures ROLL's own processes; docs/telemetry.md has Shoal's traces and metrics"
_PUBLISH = "weights go to the generators by a broadcast: weights.*"
_OFFLOAD = (
    "learner.offload_optimizer, learner.offload_parameters and generator.sleep_while_training decide what is offloaded"
)
_MOCK = "records and replays ROLL's own rollouts; `shoal run rollouts` shows the rollouts of a run"

RUN: list[Field] = rows(
    composed("exp_name", "text", "rlvr", "run.name"),
    mapped("seed", "integer", 42, "run.seed"),
    mapped("max_steps", "integer", 500, "run.num_steps"),
    composed("save_steps", "integer", 50, "checkpoint.every_steps", why="0 (never) becomes the length of the run"),
    composed("max_ckpt_to_keep", "integer", 0, "checkpoint.keep_last", why="0 keeps all"),
    composed("track_with", "texts", ["tensorboard"], "tracking.wandb tracking.tensorboard tracking.trackio"),
    composed("tracker_kwargs", "table", None, "tracking.wandb tracking.wandb_project", why="mode and project"),
    ignored(
        "logging_steps logging_dir tracker_kwargs.* save_logging_board_dir report_length_and_rewards "
        "length_profiler_dir",
        METRICS,
    ),
    ignored("output_dir base_dir checkpoint_config checkpoint_config.* dump_run_name", _FOLDER),
    ignored("rollout_dump_dir", "the run's ledger keeps every rollout: `shoal run rollouts`"),
    ignored("profiler_timeline profiler_memory profiler_output_dir", _PROFILE),
    ignored("otlp_output_dir", "docs/telemetry.md has Shoal's traces and metrics"),
    ignored("num_gpus_per_node num_nodes local_rank system_envs system_envs.* hydra hydra.*", PLACES),
    ignored("defaults", "Shoal knows ROLL's own deepspeed_zero files by name; for others, set learner.zero_stage"),
    ignored("model_download_type", "every service finds model.path on its own machine, or at the Hugging Face hub"),
    ignored("rpc_timeout backend_timeout", _DEADLINES),
    ignored("resume_from_checkpoint auto_resume", "`shoal train --resume` continues a run"),
    ignored("max_running_requests router_args router_args.* val_batch_size", _REQUESTS),
    ignored("generate_opt_level is_num_return_sequences_expand", _OWN_REQUEST),
    ignored("is_offload_states is_offload_optimizer_states_in_train_step offload_backend", _OFFLOAD),
    ignored("model_update_buffer_size_mb transfer_backend transfer_backend.*", _PUBLISH),
    ignored("rollout_mock rollout_mock.*", _MOCK),
    refused(
        "user_defined_rollout_loop_cls",
        "text",
        None,
        "Shoal runs no rollout loop of ROLL: write a custom verifier instead (docs/rewards.md)",
        accepts=(None, "roll.distributed.scheduler.user_defined_rollout_loop.UserDefinedRolloutLoop"),
    ),
    ignored(
        "early_stop_steps reward_filter_mean_threshold generate_redundancy_num difficulty_high train_batch_size "
        "num_eval_prompts",
        "an older field, which ROLL no longer reads",
    ),
    # Pipelines other than RLVR.
    played("custom_envs train_env_manager val_env_manager", "any"),
    mapped("max_actions_per_traj", "integer", None, "episodes.max_turns"),
    mapped("max_tokens_per_step", "integer", None, "episodes.max_turn_tokens"),
    refused(
        "enable_response_mask",
        "any",
        None,
        "must be true: Shoal trains only on tokens that the policy sampled",
        accepts=[None, True],
    ),
    not_yet(
        "teacher student student_train student_infer pure_opd_pipeline_type is_pure_opd use_opd opd_kl_coef "
        "opd_token_kld_clip opsd_mode opsd_solution_key opsd_teacher_template opsd_max_solution_length",
        "any",
        None,
        "distillation",
    ),
    ignored("vlm_filter vlm_filter.*", "only the pipeline of vision models reads it"),
    outside("reward_system_config", "any", None, "start your own reward system as a server: set reward.servers"),
)
