"""verl (verl-project/verl): overrides of its PPO trainer, a.b=c."""

import re
from typing import Any

from shoal.config.translate.draft import Draft, Source
from shoal.config.translate.fields import Field, Kind, accepted, choice, composed, ignored, mapped, not_yet, refused
from shoal.config.translate.open_instruct.compose import run_name
from shoal.config.translate.system import System
from shoal.config.translate.trackers import set_trackers

_A, _R, _M, _G = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model", "ref"))
_CRITIC = "GRPO has no critic"
_BATCHES = "gradients do not depend on how rows are cut into micro-batches; rows are packed to learner.pack_tokens"
_FULL = (
    "sampling from less than the full distribution biases the importance ratio, since the learner normalizes over all"
)
_LORA = "LoRA and quantized training are put off: all weights are trained"
_SHARDS = "learners are DeepSpeed's; how they share is in [learner]"
_ENGINE = "the engine's own matter"

_FUNCTION = (
    "a row is judged by the verifier that it names: map verl's data sources to verifiers with reward.remap, for "
    "example --set reward.remap.openai/gsm8k=gsm8k"
)
_OVERLONG: tuple[tuple[str, Kind, Any, list[str]], ...] = (
    ("overlong_buffer_cfg.enable", "flag", False, ["reward_model.overlong_buffer.enable"]),
    ("overlong_buffer_cfg.len", "integer", 0, ["reward_model.overlong_buffer.len"]),
    ("overlong_buffer_cfg.penalty_factor", "number", 0.0, ["reward_model.overlong_buffer.penalty_factor"]),
    ("max_resp_len", "integer", None, []),
)
"""Name, kind, default and other names of what DAPO's reward manager is given."""

_TABLE: list[Field] = [
    composed("data.train_files", "texts", None, "data.sources"),
    composed("data.val_files", "texts", None, "evaluation.sources"),
    mapped("data.train_batch_size", "integer", 1024, "grpo.groups_per_step"),
    ignored("data.val_batch_size", "held-out questions are asked as the engine has room"),
    ignored("data.gen_batch_size", "grpo.active_sampling samples what is missing"),
    mapped("data.max_prompt_length", "integer", 512, "data.max_prompt_tokens"),
    mapped("data.max_response_length", "integer", 512, "sampling.max_completion_tokens"),
    mapped("data.shuffle", "flag", True, "data.shuffle"),
    mapped("data.seed", "integer", None, "run.seed"),
    composed("data.prompt_key", "text", "prompt", "data.sources"),
    composed("data.reward_fn_key", "text", "data_source", "data.sources"),
    ignored("data.filter_overlong_prompts", "prompts longer than data.max_prompt_tokens are left out, and counted"),
    ignored("data.filter_overlong_prompts_workers", "data is read by the coordinator"),
    composed("data.truncation", "text", "error", "", why="prompts that are too long are left out, never cut"),
    ignored("data.return_raw_chat", "the ledger keeps prompts as text"),
    ignored("data.dataloader_num_workers", "data is read by the coordinator"),
    refused("data.image_key", "text", "images", "vision models are put off", accepts=["images", None]),
    refused("data.custom_cls.path", "text", None, "data is read from columns; write it as JSONL or Parquet"),
    composed("algorithm.adv_estimator", "text", "gae", "advantage.baseline advantage.scale"),
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
    ignored("algorithm.filter_groups.metric", "groups are left out when all their rewards are equal"),
    composed("algorithm.filter_groups.max_num_gen_batches", "integer", 0, "grpo.max_refills"),
    composed("algorithm.rollout_correction.rollout_is", "text", None, "correction.weight"),
    composed("algorithm.rollout_correction.rollout_is_threshold", "text", "2.0", "correction.weight_high"),
    mapped("algorithm.rollout_correction.rollout_is_batch_normalize", "flag", False, "correction.normalize"),
    composed("algorithm.rollout_correction.rollout_rs", "text", None, "correction.filters"),
    composed("algorithm.rollout_correction.rollout_rs_threshold", "text", None, "correction.filters"),
    composed("algorithm.rollout_correction.bypass_mode", "flag", False, "loss.baseline"),
    composed(f"{_M}.path", "text", None, "model.path"),
    mapped(f"{_M}.custom_chat_template", "text", None, "model.chat_template"),
    ignored(f"{_M}.use_remove_padding", _BATCHES),
    mapped(f"{_M}.enable_gradient_checkpointing", "flag", True, "learner.gradient_checkpointing"),
    ignored(f"{_M}.enable_activation_offload", "activations are recomputed, not moved"),
    ignored(f"{_M}.use_fused_kernels", "logits are cut by learner.logits_chunk_tokens"),
    ignored(f"{_M}.use_shm", "each service reads the model where it is"),
    refused(f"{_M}.trust_remote_code", "flag", False, "code from a model's folder is not run"),
    refused(f"{_M}.lora_rank", "integer", 0, _LORA, accepts=[0]),
    refused(f"{_M}.lora_alpha", "integer", 16, _LORA, accepts=[16, 32]),
    refused(f"{_M}.target_modules", "any", "all-linear", _LORA, accepts=["all-linear"]),
    composed(f"{_A}.ppo_mini_batch_size", "integer", 256, "grpo.num_mini_batches"),
    *(
        ignored(name, _BATCHES)
        for name in (
            f"{_A}.ppo_micro_batch_size",
            f"{_A}.ppo_micro_batch_size_per_gpu",
            f"{_R}.log_prob_micro_batch_size",
            f"{_R}.log_prob_micro_batch_size_per_gpu",
            f"{_R}.log_prob_use_dynamic_bsz",
            f"{_R}.log_prob_max_token_len_per_gpu",
        )
    ),
    composed(f"{_A}.use_dynamic_bsz", "flag", False, "learner.pack_tokens"),
    composed(f"{_A}.ppo_max_token_len_per_gpu", "integer", 16384, "learner.pack_tokens"),
    mapped(f"{_A}.grad_clip", "number", 1.0, "learner.max_grad_norm"),
    composed(f"{_A}.clip_ratio", "number", 0.2, "loss.clip_low loss.clip_high"),
    composed(f"{_A}.clip_ratio_low", "number", 0.2, "loss.clip_low"),
    composed(f"{_A}.clip_ratio_high", "number", 0.2, "loss.clip_high"),
    composed(f"{_A}.clip_ratio_c", "number", 3.0, "loss.dual_clip"),
    mapped(
        f"{_A}.loss_agg_mode",
        "text",
        "token-mean",
        "loss.aggregation",
        choice(
            {
                name: name
                for name in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
            }
        ),
    ),
    composed(f"{_A}.loss_scale_factor", "number", None, "loss.denominator"),
    mapped(f"{_A}.entropy_coeff", "number", 0.0, "loss.entropy_coef"),
    ignored(f"{_A}.calculate_entropy", "entropy is always measured"),
    composed(f"{_A}.use_kl_loss", "flag", False, "kl.coef"),
    composed(f"{_A}.kl_loss_coef", "number", 0.001, "kl.coef"),
    composed(f"{_A}.kl_loss_type", "text", "low_var_kl", "kl.estimator kl.gradient"),
    mapped(f"{_A}.ppo_epochs", "integer", 1, "grpo.num_epochs"),
    accepted(f"{_A}.shuffle", "flag", False, [False], "mini-batches are whole groups in the order issued"),
    mapped(f"{_A}.ulysses_sequence_parallel_size", "integer", 1, "learner.sequence_parallel_size"),
    composed(f"{_A}.policy_loss.loss_mode", "text", "vanilla", "loss.objective"),
    mapped(f"{_A}.optim.lr", "number", 1e-6, "learner.learning_rate"),
    composed(f"{_A}.optim.lr_warmup_steps", "integer", -1, "learner.warmup_steps"),
    composed(f"{_A}.optim.lr_warmup_steps_ratio", "number", 0.0, "learner.warmup_ratio"),
    composed(
        f"{_A}.optim.lr_scheduler_type",
        "text",
        "constant",
        "learner.lr_scheduler",
        aliases=[f"{_A}.optim.warmup_style"],
    ),
    composed(f"{_A}.optim.min_lr_ratio", "number", 0.0, "learner.lr_min_ratio"),
    composed(f"{_A}.optim.num_cycles", "number", 0.5, "learner.lr_num_cycles"),
    mapped(f"{_A}.optim.weight_decay", "number", 0.01, "learner.weight_decay"),
    composed(f"{_A}.optim.betas", "numbers", [0.9, 0.999], "learner.adam_beta1 learner.adam_beta2"),
    ignored(f"{_A}.optim.total_training_steps", "the schedule follows run.num_steps"),
    mapped(f"{_A}.fsdp_config.param_offload", "flag", False, "learner.offload_parameters"),
    mapped(f"{_A}.fsdp_config.optimizer_offload", "flag", False, "learner.offload_optimizer"),
    ignored(f"{_A}.fsdp_config.*", _SHARDS),
    ignored(f"{_A}.megatron.*", _SHARDS),
    accepted(f"{_A}.strategy", "text", "fsdp", ["fsdp", "fsdp2"], _SHARDS),
    ignored(f"{_A}.use_torch_compile", "the learner's model is not compiled"),
    ignored(f"{_A}.checkpoint.*", "checkpoints hold what a resume needs"),
    ignored(f"{_G}.*", "the reference is held beside the policy, when kl needs it"),
    mapped(f"{_R}.n", "integer", 1, "grpo.group_size"),
    mapped(f"{_R}.temperature", "number", 1.0, "sampling.temperature"),
    refused(f"{_R}.top_p", "number", 1.0, _FULL, accepts=[1.0]),
    refused(f"{_R}.top_k", "integer", -1, _FULL, accepts=[-1, 0]),
    accepted(f"{_R}.name", "text", "vllm", ["vllm"], "the engine is vLLM"),
    accepted(f"{_R}.do_sample", "flag", True, [True], "completions are sampled"),
    accepted(f"{_R}.ignore_eos", "flag", False, [False], "completions end at their end-of-sequence token"),
    mapped(f"{_R}.tensor_model_parallel_size", "integer", 2, "generator.tensor_parallel_size"),
    mapped(f"{_R}.gpu_memory_utilization", "number", 0.5, "generator.gpu_memory_utilization"),
    mapped(f"{_R}.max_num_seqs", "integer", 1024, "generator.max_num_seqs"),
    mapped(f"{_R}.max_model_len", "integer", None, "generator.max_model_len"),
    mapped(f"{_R}.enforce_eager", "flag", False, "generator.enforce_eager"),
    mapped(f"{_R}.dtype", "text", "bfloat16", "generator.dtype"),
    refused(f"{_R}.multi_turn.enable", "flag", False, "tools and multi-turn environments are put off"),
    composed(f"{_R}.val_kwargs.n", "integer", 1, "evaluation.samples_per_prompt"),
    composed(f"{_R}.val_kwargs.temperature", "number", 0.0, "evaluation.temperature"),
    composed(f"{_R}.val_kwargs.top_p", "number", 1.0, "evaluation.top_p"),
    composed(f"{_R}.val_kwargs.top_k", "integer", -1, "evaluation.top_k"),
    composed(f"{_R}.val_kwargs.do_sample", "flag", False, "evaluation.temperature"),
    *(
        ignored(f"{_R}.{name}", _ENGINE)
        for name in (
            "mode",
            "prompt_length",
            "response_length",
            "free_cache_engine",
            "load_format",
            "max_num_batched_tokens",
            "enable_chunked_prefill",
            "enable_prefix_caching",
            "layered_summon",
            "disable_log_stats",
            "calculate_log_probs",
            "agent.*",
            "engine_kwargs.*",
        )
    ),
    ignored("actor_rollout_ref.hybrid_engine", "generators and learners are services of their own"),
    composed("trainer.total_epochs", "integer", 30, "run.num_steps"),
    composed("trainer.total_training_steps", "integer", None, "run.num_steps"),
    composed("trainer.n_gpus_per_node", "integer", 8, "launch.num_learner_ranks"),
    composed("trainer.nnodes", "integer", 1, "launch.num_learner_ranks"),
    composed("trainer.save_freq", "integer", -1, "checkpoint.every_steps"),
    composed("trainer.test_freq", "integer", -1, "evaluation.every_steps"),
    composed("trainer.val_before_train", "flag", True, "evaluation.on_start"),
    refused("trainer.val_only", "flag", False, "a run trains; evaluate with `shoal train --set run.num_steps=1`"),
    composed("trainer.experiment_name", "text", "gsm8k", "run.name"),
    composed("trainer.project_name", "text", "verl_examples", "tracking.wandb_project"),
    composed("trainer.logger", "texts", ["console", "wandb"], "tracking.wandb tracking.tensorboard"),
    ignored("trainer.log_val_generations", "the ledger keeps every group's text and scores"),
    ignored("trainer.rollout_data_dir", "the ledger keeps every group's text and scores"),
    ignored("trainer.validation_data_dir", "the ledger keeps every group's text and scores"),
    ignored("trainer.default_local_dir", "a run's folder is made below --data-dir"),
    ignored("trainer.default_hdfs_dir", "a run's folder is made below --data-dir"),
    ignored("trainer.resume_mode", "a run goes on with `shoal train --resume`"),
    ignored("trainer.resume_from_path", "a run goes on with `shoal train --resume`"),
    ignored("trainer.critic_warmup", _CRITIC),
    ignored("trainer.balance_batch", "rows are always balanced over ranks"),
    ignored("trainer.device", "each service finds its device"),
    ignored("trainer.use_legacy_worker_impl", "how verl's workers are made"),
    mapped("trainer.max_actor_ckpt_to_keep", "integer", None, "checkpoint.keep_last"),
    ignored("trainer.max_critic_ckpt_to_keep", _CRITIC),
    ignored("critic.*", _CRITIC),
    ignored("ray_kwargs.*", "there is no Ray"),
    ignored("ray_init.*", "there is no Ray"),
    ignored("hydra.*", "settings are one file here"),
    not_yet("reward_model.enable", "flag", False, "reward models"),
    composed("reward_model.reward_manager", "text", "naive", "reward.overlong", aliases=["reward.reward_manager.name"]),
    *(
        composed(
            f"reward_model.reward_kwargs.{name}",
            kind,
            default,
            "reward.overlong",
            aliases=[f"reward.reward_kwargs.{name}", *aliases],
        )
        for name, kind, default, aliases in _OVERLONG
    ),
    ignored("reward_model.reward_kwargs.overlong_buffer_cfg.log", "reward/overlong is always among the metrics"),
    ignored("reward_model.overlong_buffer.log", "reward/overlong is always among the metrics"),
    not_yet("reward_model.*", "any", None, "reward models"),
    not_yet("reward.*", "any", None, "reward models"),
    refused("custom_reward_function.path", "text", None, _FUNCTION),
    refused("custom_reward_function.name", "text", "compute_score", _FUNCTION),
]

_ADVANTAGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "grpo": ("group_mean", "group_std", {"std_ddof": 1, "std_eps": 1e-6}),
    "grpo_vectorized": ("group_mean", "group_std", {"std_ddof": 1, "std_eps": 1e-6}),
    "grpo_passk": ("second_best", "group_std", {"std_ddof": 1, "std_eps": 1e-6}),
    "gdpo": ("group_mean", "group_std", {"std_ddof": 1, "std_eps": 1e-6, "per_verifier": True, "whiten": True}),
    "reinforce_plus_plus": ("none", "none", {"whiten": True}),
    "reinforce_plus_plus_baseline": ("group_mean", "none", {"whiten": True}),
    "rloo": ("leave_one_out", "none", {}),
    "rloo_vectorized": ("leave_one_out", "none", {}),
    "remax": ("greedy", "none", {}),
    "opo": ("length_weighted", "none", {}),
    "gpg": ("group_mean", "nonzero_share", {}),
}
"""verl's estimators as baseline, scale and further options."""
_OBJECTIVES = {"vanilla": "ppo_clip", "gspo": "gspo", "sapo": "sapo", "geo_mean": "gmpo", "cispo": "cispo"}
_OBJECTIVES |= {"gpg": "policy_gradient", "dppo_tv": "dppo_tv", "dppo_kl": "dppo_kl"}
_KL = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_CLAMPED = ("low_var_kl", "k3")
_LEVELS = {"token": "token", "seq_sum": "sequence_sum", "seq_mean": "sequence_mean", "seq_max": "sequence_max"}
_STATISTICS = {"k1": "ratio", "k2": "k2", "k3": "k3"}


def _compose(source: Source, draft: Draft) -> None:
    draft.set("run.name", run_name(source["trainer.experiment_name"]), source.origin("trainer.experiment_name"))
    if source[f"{_M}.path"]:
        draft.set("model.path", source[f"{_M}.path"], source.origin(f"{_M}.path"))
    if source.is_given("data.truncation") and source["data.truncation"] != "error":
        draft.notes.append(f"data.truncation = {source['data.truncation']}: prompts that are too long are left out")
    set_trackers(source, draft, "trainer.logger", source["trainer.logger"])
    draft.set("tracking.wandb_project", source["trainer.project_name"], source.origin("trainer.project_name"))
    _data(source, draft)
    _overlong(source, draft)
    _batches(source, draft)
    _schedule(source, draft)
    _advantage(source, draft)
    _kl(source, draft)
    _loss(source, draft)
    _correction(source, draft)


def _data(source: Source, draft: Draft) -> None:
    columns = {"messages_column": source["data.prompt_key"], "verifier_column": source["data.reward_fn_key"]}
    columns["ground_truth_column"] = "reward_model.ground_truth"
    for name, ours in (("data.train_files", "data.sources"), ("data.val_files", "evaluation.sources")):
        if source[name]:
            tables = [
                ({"path": item} if item.endswith((".jsonl", ".parquet")) else {"dataset": item}) | columns
                for item in (text.strip("[]'\" ") for text in source[name])
                if item
            ]
            draft.set(ours, tables, source.origin(name))
    test, before = source["trainer.test_freq"], source["trainer.val_before_train"]
    samples, temperature = source[f"{_R}.val_kwargs.n"], source[f"{_R}.val_kwargs.temperature"]
    top_p, top_k, sampled = (source[f"{_R}.val_kwargs.{name}"] for name in ("top_p", "top_k", "do_sample"))
    if source["data.val_files"]:
        draft.set("evaluation.num_prompts", 1_000_000, source.origin("data.val_files"))
        draft.set("evaluation.every_steps", max(0, test), source.origin("trainer.test_freq"))
        draft.set("evaluation.on_start", before, source.origin("trainer.val_before_train"))
        draft.set("evaluation.samples_per_prompt", samples, source.origin(f"{_R}.val_kwargs.n"))
        draft.set(
            "evaluation.temperature", temperature if sampled else 0.0, source.origin(f"{_R}.val_kwargs.temperature")
        )
        if sampled:
            draft.set("evaluation.top_p", top_p, source.origin(f"{_R}.val_kwargs.top_p"))
            draft.set("evaluation.top_k", max(0, top_k), source.origin(f"{_R}.val_kwargs.top_k"))


def _overlong(source: Source, draft: Draft) -> None:
    manager, prefix = source["reward_model.reward_manager"], "reward_model.reward_kwargs."
    if manager not in ("naive", "dapo", "batch", "prime", None):
        draft.refuse("reward_model.reward_manager", manager, "known: naive, dapo, batch, prime", cure="reward.overlong")
    names = [f"{prefix}{name}" for name, *_ in _OVERLONG]
    is_on, tokens, factor, limit = (source[name] for name in names)
    if manager == "dapo" and is_on:
        if tokens < 0 or factor < 0 or (limit is not None and limit < 1):
            draft.refuse(names[1], tokens, "length, factor and limit of the overlong buffer must be positive")
            return
        overlong = {"factor": factor, "buffer_tokens": tokens} | ({"max_length_tokens": limit} if limit else {})
        draft.set("reward.overlong", overlong, source.origin(*names))
        return
    for name in names:
        if source.is_given(name) and source[name]:
            draft.notes.append(f"{name} = {source[name]}: only the reward manager dapo with an enabled buffer uses it")


def _batches(source: Source, draft: Draft) -> None:
    prompts, mini = source["data.train_batch_size"], source[f"{_A}.ppo_mini_batch_size"]
    origin = source.origin("data.train_batch_size", f"{_A}.ppo_mini_batch_size")
    if mini < 1 or prompts % mini:
        draft.refuse(f"{_A}.ppo_mini_batch_size", mini, f"must divide data.train_batch_size ({prompts})")
    else:
        draft.set("grpo.num_mini_batches", prompts // mini, origin)
    dynamic, tokens = source[f"{_A}.use_dynamic_bsz"], source[f"{_A}.ppo_max_token_len_per_gpu"]
    if dynamic:
        draft.set("learner.pack_tokens", tokens, source.origin(f"{_A}.ppo_max_token_len_per_gpu"))
    nodes, gpus = source["trainer.nnodes"], source["trainer.n_gpus_per_node"]
    draft.set("launch.num_learner_ranks", nodes * gpus, source.origin("trainer.nnodes", "trainer.n_gpus_per_node"))
    tensor = source[f"{_R}.tensor_model_parallel_size"]
    draft.set("launch.num_generators", max(1, nodes * gpus // max(1, tensor)), source.origin("trainer.n_gpus_per_node"))
    draft.notes.append(
        "verl's engines and learners take turns on the same GPUs; here each has its own: see launch.num_generators and "
        "launch.num_learner_ranks"
    )
    draft.set("learner.zero_stage", 3, source.origin(f"{_A}.strategy"))
    # One batch is sampled while none is trained.
    draft.set("grpo.max_staleness", 0, source.origin("data.train_batch_size"))
    steps, epochs = source["trainer.total_training_steps"], source["trainer.total_epochs"]
    if steps:
        draft.set("run.num_steps", steps, source.origin("trainer.total_training_steps"))
    else:
        draft.refuse(
            "trainer.total_epochs",
            epochs,
            "passes over data of a length not known here: give trainer.total_training_steps, or --set run.num_steps=N",
            cure="run.num_steps",
        )
    saves = source["trainer.save_freq"]
    draft.set("checkpoint.every_steps", saves if saves > 0 else 50, source.origin("trainer.save_freq"))
    refills = source["algorithm.filter_groups.max_num_gen_batches"]
    if source["algorithm.filter_groups.enable"]:
        draft.set("grpo.keep_zero_signal", False, source.origin("algorithm.filter_groups.enable"))
        draft.set(
            "grpo.max_refills",
            refills if refills > 0 else 100,
            source.origin("algorithm.filter_groups.max_num_gen_batches"),
        )


def _schedule(source: Source, draft: Draft) -> None:
    name = f"{_A}.optim"
    steps, ratio = source[f"{name}.lr_warmup_steps"], source[f"{name}.lr_warmup_steps_ratio"]
    kind, lowest, cycles = (source[f"{name}.{part}"] for part in ("lr_scheduler_type", "min_lr_ratio", "num_cycles"))
    origin = source.origin(f"{name}.lr_scheduler_type")
    if kind not in ("constant", "cosine"):
        draft.refuse(f"{name}.lr_scheduler_type", kind, "known: constant, cosine")
        return
    if kind == "cosine":
        draft.set("learner.lr_scheduler", "cosine_with_min_lr" if lowest else "cosine", origin)
        draft.set("learner.lr_min_ratio", lowest or None, source.origin(f"{name}.min_lr_ratio"))
        draft.set("learner.lr_num_cycles", cycles, source.origin(f"{name}.num_cycles"))
    else:
        draft.set("learner.lr_scheduler", "constant_with_warmup" if steps > 0 or ratio else "constant", origin)
    if steps > 0:
        draft.set("learner.warmup_steps", steps, source.origin(f"{name}.lr_warmup_steps"))
    elif ratio:
        draft.set("learner.warmup_ratio", ratio, source.origin(f"{name}.lr_warmup_steps_ratio"))
    betas = source[f"{name}.betas"]
    if len(betas) != 2:
        draft.refuse(f"{name}.betas", betas, "two numbers are expected")
        return
    draft.set("learner.adam_beta1", betas[0], source.origin(f"{name}.betas"))
    draft.set("learner.adam_beta2", betas[1], source.origin(f"{name}.betas"))


def _advantage(source: Source, draft: Draft) -> None:
    kind, by_std = source["algorithm.adv_estimator"], source["algorithm.norm_adv_by_std_in_grpo"]
    if kind not in _ADVANTAGES:
        draft.refuse("algorithm.adv_estimator", kind, f"known here: {', '.join(_ADVANTAGES)}; others need a critic")
        return
    baseline, scale, options = _ADVANTAGES[kind]
    origin = source.origin("algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo")
    draft.set("advantage.baseline", baseline, origin)
    draft.set("advantage.scale", scale if by_std or scale != "group_std" else "none", origin)
    for name, value in options.items():
        draft.set(f"advantage.{name}", value, origin)


def _kl(source: Source, draft: Draft) -> None:
    in_loss, in_reward = source[f"{_A}.use_kl_loss"], source["algorithm.use_kl_in_reward"]
    coef, kind = source[f"{_A}.kl_loss_coef"], source[f"{_A}.kl_loss_type"]
    penalty, control = source["algorithm.kl_penalty"], source["algorithm.kl_ctrl.type"]
    weight, horizon, target = (source[f"algorithm.kl_ctrl.{name}"] for name in ("kl_coef", "horizon", "target_kl"))
    if in_loss and in_reward:
        draft.refuse(
            "algorithm.use_kl_in_reward", True, "the KL is in the loss (use_kl_loss) or in the reward: choose one"
        )
        return
    name = f"{_A}.kl_loss_type" if in_loss else "algorithm.kl_penalty"
    spelled = kind if in_loss else penalty
    plain = spelled.rstrip("+")
    if plain not in _KL and (in_loss or in_reward):
        draft.refuse(name, spelled, f"known: {', '.join(_KL)}, with + for straight-through")
        return
    draft.set("kl.coef", coef if in_loss else weight if in_reward else 0.0, source.origin(f"{_A}.use_kl_loss"))
    if not in_loss and not in_reward:
        return
    draft.set("kl.estimator", _KL[plain], source.origin(name))
    if plain in _CLAMPED:
        draft.set("kl.output_clamp", 10.0, source.origin(name))
    if in_loss and spelled.endswith("+"):
        draft.set("kl.gradient", "straight_through", source.origin(name))
    if in_reward:
        draft.set("kl.place", "reward", source.origin("algorithm.use_kl_in_reward"))
        # The others add a completion's token rewards up before they compare them.
        level = "token" if source["algorithm.adv_estimator"] in ("reinforce_plus_plus", "remax") else "completion"
        draft.set("kl.reward_level", level, source.origin("algorithm.use_kl_in_reward"))
        if control == "adaptive":
            draft.set("kl.target", target, source.origin("algorithm.kl_ctrl.target_kl"))
            draft.set("kl.horizon", horizon, source.origin("algorithm.kl_ctrl.horizon"))


def _loss(source: Source, draft: Draft) -> None:
    mode, origin = source[f"{_A}.policy_loss.loss_mode"], source.origin(f"{_A}.policy_loss.loss_mode")
    base, low, high, dual = (
        source[f"{_A}.{name}"] for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
    )
    if mode not in _OBJECTIVES:
        draft.refuse(f"{_A}.policy_loss.loss_mode", mode, f"known: {', '.join(_OBJECTIVES)}")
        return
    objective = _OBJECTIVES[mode]
    draft.set("loss.objective", objective, origin)
    if objective in ("ppo_clip", "gspo", "cispo"):
        for name, ours, value in (("clip_ratio_low", "clip_low", low), ("clip_ratio_high", "clip_high", high)):
            of = name if source.is_given(f"{_A}.{name}") or not source.is_given(f"{_A}.clip_ratio") else "clip_ratio"
            draft.set(f"loss.{ours}", value if of == name else base, source.origin(f"{_A}.{of}"))
    if objective == "ppo_clip":
        draft.set("loss.dual_clip", dual, source.origin(f"{_A}.clip_ratio_c"))
    if objective == "cispo":
        draft.set("loss.cispo_lower", True, origin)
    if objective == "gmpo":
        draft.set("loss.gmpo_log_clip_low", low, source.origin(f"{_A}.clip_ratio_low"))
        draft.set("loss.gmpo_log_clip_high", high, source.origin(f"{_A}.clip_ratio_high"))
    if objective == "gspo":
        draft.set("loss.aggregation", "seq-mean-token-mean", origin)
    if (factor := source[f"{_A}.loss_scale_factor"]) is not None:
        draft.set("loss.denominator", factor, source.origin(f"{_A}.loss_scale_factor"))
    bypass = source["algorithm.rollout_correction.bypass_mode"]
    draft.set(
        "loss.baseline", "behavior" if bypass else "proximal", source.origin("algorithm.rollout_correction.bypass_mode")
    )


def _correction(source: Source, draft: Draft) -> None:
    name = "algorithm.rollout_correction"
    level, threshold = source[f"{name}.rollout_is"], source[f"{name}.rollout_is_threshold"]
    rejection, limits = source[f"{name}.rollout_rs"], source[f"{name}.rollout_rs_threshold"]
    if level is not None:
        if level not in ("token", "sequence"):
            draft.refuse(f"{name}.rollout_is", level, "known: token, sequence")
            return
        draft.set("correction.weight", level, source.origin(f"{name}.rollout_is"))
        low, high = _bounds(threshold)
        draft.set("correction.weight_high", high, source.origin(f"{name}.rollout_is_threshold"))
        if low is not None:
            # Two bounds are IcePop's: outside them a token is dropped, not clamped.
            test = {
                "statistic": "ratio",
                "level": "token" if level == "token" else "sequence_sum",
                "low": low,
                "high": high,
            }
            draft.set("correction.filters", [test], source.origin(f"{name}.rollout_is_threshold"))
    if rejection is not None:
        match = re.fullmatch(r"(token|seq_sum|seq_mean|seq_max)_(k[123])", rejection)
        if match is None or limits is None:
            draft.refuse(
                f"{name}.rollout_rs",
                rejection,
                "known: token, seq_sum, seq_mean, seq_max with _k1, _k2, _k3, and a threshold",
            )
            return
        low, high = _bounds(limits)
        if match[2] == "k1":
            # verl bounds the inverse of the ratio.
            low, high = 1 / high, 1 / (low or 1 / high)
        test = {"statistic": _STATISTICS[match[2]], "level": _LEVELS[match[1]], "high": high, "reject": True}
        if low is not None:
            test["low"] = low
        filters = [*draft.values.get("correction.filters", []), test]
        draft.set("correction.filters", filters, source.origin(f"{name}.rollout_rs", f"{name}.rollout_rs_threshold"))


def _bounds(text: str) -> tuple[float | None, float]:
    """ "0.5_2.0" is both bounds, "2.0" the upper one."""
    low, _, high = str(text).rpartition("_")
    return (float(low) if low else None), float(high)


VERL = System(
    name="verl",
    table=tuple(_TABLE),
    compose=_compose,
    model_field=f"{_M}.path",
    data_field="data.train_files",
    implied={"grpo.keep_zero_signal": (True, "verl trains on groups of equal rewards too: they count in the divisor")},
    programs=(re.compile(r"^verl\.trainer\.main_ppo\w*$|main_ppo\w*\.py$|^verl\..*\.main_\w+$"),),
    is_nested=True,
)
