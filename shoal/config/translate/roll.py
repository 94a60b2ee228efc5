"""ROLL (alibaba/ROLL): the YAML of its RLVR pipeline."""

import math
import re
from collections.abc import Sequence
from typing import Any

from shoal.config.translate.draft import Draft, Origin, Source
from shoal.config.translate.fields import (
    Field,
    accepted,
    choice,
    composed,
    ignored,
    mapped,
    not_yet,
    refused,
    text_list,
)
from shoal.config.translate.open_instruct.compose import run_name
from shoal.config.translate.system import System
from shoal.config.translate.trackers import set_trackers

_CRITIC = "GRPO has no critic"
_PLACES = "where processes run is the deployment's; `shoal train` starts all of them on one machine"
_BATCHES = "gradients do not depend on how rows are cut into micro-batches"
_FULL = (
    "sampling from less than the full distribution biases the importance ratio, since the learner normalizes over all"
)
_TRACKS = "every run writes metrics.jsonl"
_SCHEDULERS = {"constant": "constant", "linear": "linear", "cosine": "cosine", "polynomial": "polynomial"}
_SCHEDULERS |= {"constant_with_warmup": "constant_with_warmup", "cosine_with_restarts": "cosine_with_restarts"}
_STAGES = {f"deepspeed_zero{stage}": stage for stage in ("", "1", "2", "3")}

_WORKERS = (
    "ROLL gives each domain a reward worker by the rows' tag; here a row's verifier judges it: give data.sources "
    'verifier_column = "tag", and reward.remap from each tag to a verifier'
)

_TABLE: list[Field] = [
    composed("track_with", "texts", ["stdout"], "tracking.wandb tracking.tensorboard"),
    composed("exp_name", "text", "rlvr", "run.name"),
    mapped("seed", "integer", 42, "run.seed"),
    mapped("max_steps", "integer", 500, "run.num_steps"),
    mapped("save_steps", "integer", 50, "checkpoint.every_steps", lambda n: max(1, n or 1)),
    composed("eval_steps", "integer", 1, "evaluation.every_steps"),
    *(ignored(name, _TRACKS) for name in ("logging_steps", "logging_dir", "tracker_kwargs", "tracker_kwargs.*")),
    *(
        ignored(name, "a run's folder is made below --data-dir")
        for name in ("output_dir", "checkpoint_config", "checkpoint_config.*")
    ),
    *(
        ignored(name, _PLACES)
        for name in ("num_gpus_per_node", "num_nodes", "system_envs", "system_envs.*", "hydra", "hydra.*", "defaults")
    ),
    ignored("resume_from_checkpoint", "a run goes on with `shoal train --resume`"),
    composed("pretrain", "text", None, "model.path"),
    ignored("reward_pretrain", "verifiers score; no reward model is loaded unless one is asked for"),
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
        why="seq-mean-token-sum-norm divides by the batch too, which ROLL omits",
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
    refused("whiten_rewards", "flag", False, "rewards are not whitened by tokens; whiten_advantages does it after"),
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
    composed("pg_variant", "text", "ppo", "loss.objective"),
    composed("use_policy_loss_type", "text", "PPO", "loss.objective"),
    composed("use_topr_loss", "flag", False, "loss.objective"),
    composed("tis_lower_bound", "number", 0.0, "loss.ratio_low"),
    composed("tis_upper_bound", "number", 1.0, "loss.ratio_high"),
    composed("topr_positive_weight", "number", 1.0, "loss.topr_positive_weight"),
    composed("topr_negative_weight", "number", 1.0, "loss.topr_negative_weight"),
    composed("cispo_epsilon_low", "number", 0.1, "loss.clip_low"),
    composed("cispo_epsilon_high", "number", 0.1, "loss.clip_high"),
    composed("cispo_use_unified_mask", "flag", False, "loss.cispo_unified_mask"),
    composed("kimi15_tau", "number", 0.1, "loss.kimi15_tau"),
    refused("postive_loss_coef", "number", 0.0, "the older switch; give pg_variant topr", accepts=[0.0]),
    refused("use_topr_neg_loss_coef", "number", 0.0, "the older switch; give pg_variant topr", accepts=[0.0]),
    mapped("entropy_loss_coef", "number", 0.0, "loss.entropy_coef"),
    refused("rl_loss_coef", "number", 1.0, "a factor of the whole loss is the learning rate's matter: use 1"),
    mapped("difficulty_loss_weight", "flag", False, "loss.difficulty_weight"),
    mapped("length_loss_weight", "flag", False, "loss.length_weight"),
    mapped("max_len_mask", "flag", False, "grpo.mask_truncated_completions"),
    composed("difficulty_mask", "flag", False, "grpo.difficulty_low grpo.difficulty_high"),
    composed("difficulty_low_threshold", "number", 0.0, "grpo.difficulty_low"),
    composed("difficulty_high_threshold", "number", 1.0, "grpo.difficulty_high"),
    composed("error_max_len_clip", "flag", False, "grpo.max_wrong_completion_tokens"),
    composed("error_max_len_threshold", "number", 1e10, "grpo.max_wrong_completion_tokens"),
    ignored("difficulty_high", "ROLL has no such field; difficulty_high_threshold"),
    composed("async_generation_ratio", "number", 0.0, "grpo.max_staleness", why="rounded up"),
    composed("is_use_additional_prompts", "flag", False, "grpo.active_sampling"),
    composed("dynamic_sampling", "flag", False, "grpo.active_sampling"),
    ignored("max_additional_running_prompts", "groups in flight are bounded by grpo.max_staleness"),
    ignored("max_running_requests", "the engine admits what its cache holds: generator.max_num_seqs"),
    ignored("generate_opt_level", "completions are always requests of their own"),
    ignored("is_num_return_sequences_expand", "completions are always requests of their own"),
    ignored("val_greedy", "evaluation's own settings are in [evaluation]"),
    ignored("val_n_sample", "evaluation's own settings are in [evaluation]"),
    composed("actor_train.training_args.learning_rate", "number", 5e-5, "learner.learning_rate"),
    mapped("actor_train.training_args.weight_decay", "number", 0.0, "learner.weight_decay"),
    mapped("actor_train.training_args.warmup_steps", "integer", 0, "learner.warmup_steps"),
    mapped("actor_train.training_args.max_grad_norm", "number", 1.0, "learner.max_grad_norm"),
    mapped("actor_train.training_args.adam_beta1", "number", 0.9, "learner.adam_beta1"),
    mapped("actor_train.training_args.adam_beta2", "number", 0.999, "learner.adam_beta2"),
    composed("actor_train.training_args.lr_scheduler_type", "text", "linear", "learner.lr_scheduler"),
    composed("actor_train.training_args.per_device_train_batch_size", "integer", 8, "grpo.num_mini_batches"),
    composed("actor_train.training_args.gradient_accumulation_steps", "integer", 1, "grpo.num_mini_batches"),
    ignored("actor_train.training_args.num_train_epochs", "max_steps counts the steps"),
    ignored("actor_train.training_args.dataloader_num_workers", "data is read by the coordinator"),
    ignored("actor_train.training_args.logging_steps", _TRACKS),
    mapped(
        "actor_train.model_args.disable_gradient_checkpointing",
        "flag",
        False,
        "learner.gradient_checkpointing",
        lambda off: not off,
    ),
    mapped(
        "actor_train.model_args.dtype",
        "text",
        "bf16",
        "learner.compute_dtype",
        choice({"bf16": "bfloat16", "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32"}),
    ),
    mapped(
        "actor_train.model_args.attn_implementation",
        "text",
        None,
        "learner.attention",
        choice({None: "auto", "fa2": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}),
    ),
    ignored("actor_train.model_args.model_type", "the model's own config.json says what it is"),
    refused("actor_train.model_args.lora_rank", "integer", None, "LoRA and quantized training are put off"),
    refused("actor_train.model_args.lora_target", "any", None, "LoRA and quantized training are put off"),
    refused(
        "actor_train.model_args.freeze_module_prefix", "any", None, "vision models are put off: all weights are trained"
    ),
    composed("actor_train.data_args.file_name", "texts", None, "data.sources"),
    composed("actor_train.data_args.messages", "text", "messages", "data.sources"),
    composed("actor_train.data_args.dataset_dir", "text", None, "data.sources"),
    mapped(
        "actor_train.data_args.template",
        "text",
        None,
        "model.chat_template",
        choice({None: None, "native": None, "qwen2_5": None, "qwen3": None, "chatml": "chatml"}),
        why="all but chatml are the tokenizer's own; others are given with --set model.chat_template=...",
    ),
    refused(
        "actor_train.data_args.domain_interleave_probs", "any", None, "mix by data.sources' fraction or count instead"
    ),
    refused("actor_train.data_args.interleave_probs", "any", None, "mix by data.sources' fraction or count instead"),
    ignored("actor_train.data_args.preprocessing_num_workers", "data is read by the coordinator"),
    composed("actor_train.strategy_args.strategy_name", "text", None, "learner.zero_stage"),
    ignored("actor_train.strategy_args.strategy_config", _PLACES),
    ignored("actor_train.strategy_args.strategy_config.*", "learners are DeepSpeed's; how they share is in [learner]"),
    composed("actor_train.device_mapping", "text", None, "launch.num_learner_ranks"),
    ignored("actor_train.infer_batch_size", _BATCHES),
    ignored("actor_train.use_dynamic_batching_in_train", "rows are always packed to learner.pack_tokens"),
    ignored("actor_train.use_sequence_packing", "rows are always packed to learner.pack_tokens"),
    ignored("actor_infer.model_args.*", "the engine's type is generator.dtype"),
    mapped("actor_infer.generating_args.stop_strings", "any", None, "sampling.stop_strings", text_list),
    accepted(
        "actor_infer.generating_args.include_stop_str_in_output",
        "flag",
        None,
        [True, False, None],
        "the tokens of a stop string are kept, and trained on, with either value",
    ),
    mapped("actor_infer.generating_args.temperature", "number", 1.0, "sampling.temperature"),
    refused("actor_infer.generating_args.top_p", "number", 1.0, _FULL, accepts=[1.0]),
    refused("actor_infer.generating_args.top_k", "integer", 0, _FULL, accepts=[0, -1, None]),
    ignored("actor_infer.generating_args.max_new_tokens", "ROLL replaces it by response_length"),
    ignored("actor_infer.generating_args.num_return_sequences", "ROLL replaces it by num_return_sequences_in_group"),
    refused("actor_infer.generating_args.num_beams", "integer", 1, "completions are sampled", accepts=[1]),
    ignored("actor_infer.data_args.*", "prompts are templated once, by the coordinator"),
    ignored("actor_infer.strategy_args.strategy_name", "the engine is vLLM"),
    mapped(
        "actor_infer.strategy_args.strategy_config.gpu_memory_utilization",
        "number",
        0.9,
        "generator.gpu_memory_utilization",
    ),
    mapped(
        "actor_infer.strategy_args.strategy_config.tensor_parallel_size", "integer", 1, "generator.tensor_parallel_size"
    ),
    mapped("actor_infer.strategy_args.strategy_config.max_model_len", "integer", None, "generator.max_model_len"),
    ignored("actor_infer.strategy_args.strategy_config.*", "the engine's own matter"),
    ignored("actor_infer.device_mapping", _PLACES),
    ignored("actor_infer.infer_batch_size", "the engine admits what its cache holds: generator.max_num_seqs"),
    ignored("reference.*", "the reference is held beside the policy, when kl needs it"),
    ignored("validation.data_args.*", "held-out questions are given in evaluation.sources"),
    ignored("validation.generating_args.*", "evaluation's own settings are in [evaluation]"),
    ignored("validation.*", "held-out questions are given in evaluation.sources"),
    refused("rewards", "any", None, _WORKERS),
    refused("rewards.*", "any", None, _WORKERS),
    not_yet("reward.*", "any", None, "reward models"),
    ignored("num_eval_prompts", "held-out questions are given in evaluation.sources"),
]


def _compose(source: Source, draft: Draft) -> None:
    draft.set("run.name", run_name(source["exp_name"]), source.origin("exp_name"))
    if source["pretrain"]:
        draft.set("model.path", source["pretrain"], source.origin("pretrain"))
    draft.set("learner.learning_rate", source[f"{_TRAIN}.learning_rate"], source.origin(f"{_TRAIN}.learning_rate"))
    set_trackers(source, draft, "track_with", source["track_with"])
    _lengths(source, draft)
    _data(source, draft)
    _batches(source, draft)
    _advantage(source, draft)
    _kl(source, draft)
    _loss(source, draft)
    for end in ("low", "high"):
        name = f"difficulty_{end}_threshold"
        threshold = source[name]
        if source["difficulty_mask"]:
            draft.set(f"grpo.difficulty_{end}", threshold, source.origin(name))
        elif source.is_given(name):
            draft.notes.append(f"{name} = {threshold}: changes nothing without difficulty_mask")
    threshold = source["error_max_len_threshold"]
    if source["error_max_len_clip"]:
        if threshold < 1e10:
            origin = source.origin("error_max_len_clip", "error_max_len_threshold")
            draft.set("grpo.max_wrong_completion_tokens", math.ceil(threshold), origin)
    elif source.is_given("error_max_len_threshold"):
        draft.notes.append(f"error_max_len_threshold = {threshold}: changes nothing without error_max_len_clip")
    ratio = source["async_generation_ratio"]
    draft.set("grpo.max_staleness", math.ceil(ratio), source.origin("async_generation_ratio"))
    refills = source["is_use_additional_prompts"] or source["dynamic_sampling"]
    draft.set("grpo.active_sampling", refills, source.origin("is_use_additional_prompts"))
    if not refills:
        draft.set("grpo.keep_zero_signal", True, Origin("ROLL counts groups of equal rewards in the divisor", False))
    every = source["eval_steps"]
    if source.is_given("eval_steps"):
        draft.notes.append(
            f"eval_steps = {every}: held-out questions are given in evaluation.sources, with evaluation.every_steps"
        )


_TRAIN = "actor_train.training_args"


def _lengths(source: Source, draft: Draft) -> None:
    response, whole = source["response_length"], source["sequence_length"]
    if response is None and whole is not None:
        response = whole - source["prompt_length"]
    if response is None:
        draft.refuse(
            "response_length", None, "the source says no length of completions", cure="sampling.max_completion_tokens"
        )
        return
    name = "response_length" if source["response_length"] is not None else "sequence_length"
    draft.set("sampling.max_completion_tokens", response, source.origin(name))


def _data(source: Source, draft: Draft) -> None:
    files = source["actor_train.data_args.file_name"]
    folder, messages = source["actor_train.data_args.dataset_dir"], source["actor_train.data_args.messages"]
    tables: list[dict[str, Any]] = []
    for name in files or []:
        path = f"{folder.rstrip('/')}/{name}" if folder and not name.startswith(("/", folder)) else name
        table: dict[str, Any] = {"path": path} if path.endswith((".jsonl", ".parquet")) else {"dataset": path}
        tables.append(table | ({"messages_column": messages} if messages != "messages" else {}))
    if tables:
        draft.set("data.sources", tables, source.origin("actor_train.data_args.file_name"))


def _ranks(mapping: str | None) -> int | None:
    """The number of devices in "list(range(0,16))" or "[0,1]"; None where it is not told so."""
    if mapping is None:
        return None
    if match := re.fullmatch(r"list\(range\((\d+),\s*(\d+)\)\)", mapping.strip()):
        return int(match[2]) - int(match[1])
    numbers = re.findall(r"\d+", mapping)
    return len(numbers) or None


def _batches(source: Source, draft: Draft) -> None:
    ranks = _ranks(source["actor_train.device_mapping"])
    name = source["actor_train.strategy_args.strategy_name"]
    if ranks:
        draft.set("launch.num_learner_ranks", ranks, source.origin("actor_train.device_mapping"))
    if name in (None, "deepspeed_train", "megatron_train", "fsdp2_train"):
        if name in ("megatron_train", "fsdp2_train"):
            draft.notes.append(
                f"strategy_name = {name}: learners are DeepSpeed's; learner.zero_stage says how they share"
            )
    else:
        draft.refuse(
            "actor_train.strategy_args.strategy_name", name, "learners are DeepSpeed's", cure="learner.zero_stage"
        )
    device, accumulation = (
        source[f"{_TRAIN}.per_device_train_batch_size"],
        source[f"{_TRAIN}.gradient_accumulation_steps"],
    )
    names = (f"{_TRAIN}.per_device_train_batch_size", f"{_TRAIN}.gradient_accumulation_steps")
    if not any(source.is_given(item) for item in names):
        draft.notes.append(
            "one optimizer step a train step: no actor_train.training_args say how many samples it takes"
        )
        return
    samples = source["rollout_batch_size"] * source["num_return_sequences_in_group"]
    per_step = device * accumulation * (ranks or 1)
    if per_step < 1 or samples % per_step:
        draft.refuse(
            names[1],
            accumulation,
            f"the {samples} samples of a step must be divisible by those of an optimizer step ({per_step})",
            cure="grpo.num_mini_batches",
        )
        return
    draft.set("grpo.num_mini_batches", samples // per_step, source.origin(*names))


def _advantage(source: Source, draft: Draft) -> None:
    estimator, origin = source["adv_estimator"], source.origin("adv_estimator")
    mean, std = source["norm_mean_type"], source["norm_std_type"]
    shift, scale, legacy = source["reward_shift"], source["reward_scale"], source["reward_norm"]
    if estimator not in ("grpo", "reinforce"):
        draft.refuse("adv_estimator", estimator, "known here: grpo, reinforce; gae needs a critic, which GRPO has not")
        return
    if estimator == "grpo":
        mean = std = "group"
    elif legacy:
        mean = std = "group" if legacy == "grpo" else legacy
    if shift and not scale:
        std = None
    elif scale and not shift:
        mean = None
    for name, kind in (("norm_mean_type", mean), ("norm_std_type", std)):
        if kind not in (None, "group", "batch"):
            draft.refuse(name, kind, "known: group, batch; running statistics are not kept")
            return
    if std == "group" and mean != "group":
        draft.refuse("norm_std_type", "group", "equal rewards would be divided by 0 without their group's mean")
        return
    origin = source.origin(
        "adv_estimator", *(n for n in ("reward_norm", "reward_shift", "reward_scale") if source.is_given(n))
    )
    draft.set("advantage.baseline", {None: "none", "group": "group_mean", "batch": "batch_mean"}[mean], origin)
    draft.set("advantage.scale", {None: "none", "group": "group_std", "batch": "batch_std"}[std], origin)


def _kl(source: Source, draft: Draft) -> None:
    in_loss, in_reward = source["use_kl_loss"], source["add_token_level_kl"]
    coef, initial = source["kl_loss_coef"], source["init_kl_coef"]
    penalty, target, horizon = source["kl_penalty"], source["target_kl"], source["kl_horizon"]
    if in_loss and in_reward and coef:
        draft.refuse("add_token_level_kl", True, "the KL is in the loss (use_kl_loss) or in the reward: choose one")
        return
    if in_reward and initial:
        estimators = {"kl": "k1", "abs": "abs", "mse": "k2", "low_var_kl": "k3", "k3": "k3"}
        if penalty not in estimators:
            draft.refuse("kl_penalty", penalty, f"known: {', '.join(estimators)}")
            return
        draft.set("kl.coef", initial, source.origin("add_token_level_kl", "init_kl_coef"))
        draft.set("kl.place", "reward", source.origin("add_token_level_kl"))
        draft.set("kl.estimator", estimators[penalty], source.origin("kl_penalty"))
        if target is not None:
            draft.set("kl.target", target, source.origin("target_kl"))
            draft.set("kl.horizon", horizon, source.origin("kl_horizon"))
        return
    draft.set("kl.coef", coef if in_loss else 0.0, source.origin("use_kl_loss", "kl_loss_coef"))
    if in_loss and coef:
        draft.set("kl.output_clamp", 10.0, source.origin("use_kl_loss"))
    for name in ("kl_penalty", "init_kl_coef", "target_kl", "kl_horizon"):
        if source.is_given(name):
            draft.notes.append(f"{name}: only add_token_level_kl uses it")


def _loss(source: Source, draft: Draft) -> None:
    variant, level = source["pg_variant"], source["importance_sampling"]
    older = source["use_policy_loss_type"].upper()
    if source["use_topr_loss"]:
        variant = "topr"
    if older != "PPO":
        draft.refuse("use_policy_loss_type", older, "the older switch; give pg_variant")
    names = {"ppo": "ppo_clip", "vanilla": "policy_gradient", "tis": "truncated_is", "topr": "topr"}
    names |= {"cispo": "cispo", "kimi15": "kimi15"}
    if variant not in names or level not in ("token", "seq"):
        draft.refuse("pg_variant", f"{variant}, {level}", f"known: {', '.join(names)}; of token or seq")
        return
    objective = "gspo" if variant == "ppo" and level == "seq" else names[variant]
    draft.set("loss.objective", objective, source.origin("pg_variant", "importance_sampling"))
    draft.set("loss.baseline", "proximal", source.origin("ppo_epochs"))
    used: Sequence[str]
    if objective in ("ppo_clip", "gspo"):
        low_name, high_name = ("pg_clip_low", "pg_clip_high") if source["use_pg_clip_range"] else ("pg_clip", "pg_clip")
        draft.set("loss.clip_low", source[low_name], source.origin(low_name))
        draft.set("loss.clip_high", source[high_name], source.origin(high_name))
        if source["dual_clip_loss"]:
            draft.set("loss.dual_clip", 1 + 2 * source["pg_clip"], source.origin("dual_clip_loss", "pg_clip"))
        used = ("pg_clip", "use_pg_clip_range", low_name, high_name, "dual_clip_loss")
    elif objective == "cispo":
        draft.set("loss.clip_low", source["cispo_epsilon_low"], source.origin("cispo_epsilon_low"))
        draft.set("loss.clip_high", source["cispo_epsilon_high"], source.origin("cispo_epsilon_high"))
        draft.set("loss.cispo_lower", True, source.origin("pg_variant"))
        draft.set("loss.cispo_unified_mask", source["cispo_use_unified_mask"], source.origin("cispo_use_unified_mask"))
        used = ("cispo_epsilon_low", "cispo_epsilon_high", "cispo_use_unified_mask")
    elif objective in ("truncated_is", "topr"):
        draft.set("loss.ratio_low", source["tis_lower_bound"], source.origin("tis_lower_bound"))
        draft.set("loss.ratio_high", source["tis_upper_bound"], source.origin("tis_upper_bound"))
        used = ("tis_lower_bound", "tis_upper_bound")
        if objective == "topr":
            for name in ("topr_positive_weight", "topr_negative_weight"):
                draft.set(f"loss.{name}", source[name], source.origin(name))
            used = (*used, "topr_positive_weight", "topr_negative_weight")
    else:
        draft.set(
            "loss.kimi15_tau", source["kimi15_tau"] if objective == "kimi15" else None, source.origin("kimi15_tau")
        )
        used = ("kimi15_tau",) if objective == "kimi15" else ()
    for name in _VARIANT_OPTIONS:
        value = source[name]
        if source.is_given(name) and name not in used:
            draft.notes.append(f"{name} = {value}: changes nothing with pg_variant {variant} and the other settings")
    scheduler = source[f"{_TRAIN}.lr_scheduler_type"]
    if scheduler not in _SCHEDULERS:
        draft.refuse(f"{_TRAIN}.lr_scheduler_type", scheduler, f"known: {', '.join(_SCHEDULERS)}")
        return
    draft.set("learner.lr_scheduler", _SCHEDULERS[scheduler], source.origin(f"{_TRAIN}.lr_scheduler_type"))


_VARIANT_OPTIONS = (
    "pg_clip",
    "use_pg_clip_range",
    "pg_clip_low",
    "pg_clip_high",
    "dual_clip_loss",
    "tis_lower_bound",
    "tis_upper_bound",
    "topr_positive_weight",
    "topr_negative_weight",
    "cispo_epsilon_low",
    "cispo_epsilon_high",
    "cispo_use_unified_mask",
    "kimi15_tau",
)

ROLL = System(
    name="roll",
    table=tuple(_TABLE),
    compose=_compose,
    model_field="pretrain",
    data_field="actor_train.data_args.file_name",
    is_nested=True,
)
