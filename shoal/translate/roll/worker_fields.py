"""ROLL's settings of workers (actor_train, actor_infer, reference, rewards), one row each."""

from shoal.translate.shared.field import (
    Fate,
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

_PLACES = "the deployment decides where processes run; `shoal train` starts all of them on one machine"
_BATCHES = "gradients do not depend on micro-batches"
_FULL = (
    "sampling from less than the full distribution biases the importance ratio, since the learner normalizes over all"
)
_TRACKS = "every run writes metrics.jsonl"

_WORKERS = (
    "ROLL chooses a reward worker by the tag of a row; here each row names its verifier: give data.sources "
    'verifier_column = "tag", and map each tag to a verifier with reward.remap'
)

SPLITS = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "ulysses_size")
"""Numbers of ranks that share one model, or one row, in a strategy."""

_REWARD_MODEL = (
    "a reward model scores the rows whose verifier is reward_model: --set reward.model.path=MODEL, and give "
    'data.sources verifier = "reward_model"'
)

WORKERS: list[Field] = [
    composed("actor_train.training_args.learning_rate", "number", 5e-5, "learner.learning_rate"),
    mapped("actor_train.training_args.weight_decay", "number", 0.0, "learner.weight_decay"),
    mapped("actor_train.training_args.warmup_steps", "integer", 0, "learner.warmup_steps"),
    mapped("actor_train.training_args.max_grad_norm", "number", 1.0, "learner.max_grad_norm"),
    mapped("actor_train.training_args.adam_beta1", "number", 0.9, "learner.adam_beta1"),
    mapped("actor_train.training_args.adam_beta2", "number", 0.999, "learner.adam_beta2"),
    composed("actor_train.training_args.lr_scheduler_type", "text", "linear", "learner.lr_scheduler"),
    composed("actor_train.training_args.per_device_train_batch_size", "integer", 8, "grpo.num_mini_batches"),
    composed("actor_train.training_args.gradient_accumulation_steps", "integer", 1, "grpo.num_mini_batches"),
    ignored("actor_train.training_args.num_train_epochs", "max_steps sets the number of steps"),
    ignored("actor_train.training_args.dataloader_num_workers", "the coordinator reads the data"),
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
        choice({None: "auto", "auto": "auto", "fa2": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}),
        aliases=["actor_train.model_args.flash_attn"],
    ),
    ignored("actor_train.model_args.model_type", "the model's config.json names its type"),
    not_yet("actor_train.model_args.lora_rank", "integer", None, "LoRA"),
    not_yet("actor_train.model_args.lora_target", "any", None, "LoRA"),
    not_yet("actor_train.model_args.freeze_module_prefix", "any", None, "vision"),
    composed("actor_train.data_args.file_name", "texts", None, "data.sources"),
    composed("actor_train.data_args.messages", "text", "messages", "data.sources"),
    composed("actor_train.data_args.dataset_dir", "text", None, "data.sources"),
    mapped(
        "actor_train.data_args.template",
        "text",
        None,
        "model.chat_template",
        choice({None: None, "native": None, "qwen2_5": None, "qwen3": None, "chatml": "chatml"}),
        why="all but chatml are the tokenizer's own; set another with --set model.chat_template=...",
    ),
    composed(
        "actor_train.data_args.domain_interleave_probs", "table", None, "data.sources", why="for a single domain only"
    ),
    composed("actor_train.data_args.interleave_probs", "numbers", None, "data.sources", why="for a single file only"),
    ignored("actor_train.data_args.preprocessing_num_workers", "the coordinator reads the data"),
    composed("actor_train.strategy_args.strategy_name", "text", None, "learner.zero_stage"),
    composed(
        "actor_train.strategy_args.strategy_config",
        "any",
        None,
        "learner.zero_stage learner.offload_parameters learner.offload_optimizer",
        why="ROLL's own DeepSpeed files, by name",
    ),
    *(
        composed(f"actor_train.strategy_args.strategy_config.{name}", "integer", 1, "grpo.num_mini_batches")
        for name in SPLITS
    ),
    ignored(
        "actor_train.strategy_args.strategy_config.*",
        "the learner uses DeepSpeed; [learner] decides how its ranks share the model",
    ),
    composed("actor_train.device_mapping", "text", None, "launch.num_learner_ranks"),
    ignored("actor_train.infer_batch_size", _BATCHES),
    ignored("actor_train.max_tokens_per_microbatch_in_train", _BATCHES),
    ignored("actor_train.sequence_length_round_in_train", _BATCHES),
    *(
        ignored(f"{worker}.{name}", _PLACES)
        for worker in ("actor_train", "actor_infer")
        for name in ("worker_cls", "num_gpus_per_worker", "world_size", "system_envs", "system_envs.*", "offload_nccl")
    ),
    *(
        not_yet(f"actor_train.model_args.{name}", "any", None, "LoRA")
        for name in ("lora_alpha", "lora_dropout", "additional_target")
    ),
    ignored("actor_train.model_args.device_map", _PLACES),
    ignored("actor_train.use_dynamic_batching_in_train", "rows are always packed to learner.pack_tokens"),
    ignored("actor_train.use_sequence_packing", "rows are always packed to learner.pack_tokens"),
    ignored("actor_infer.model_args.*", "generator.dtype is the type of the engine"),
    mapped("actor_infer.generating_args.stop_strings", "any", None, "sampling.stop_strings", text_list),
    accepted(
        "actor_infer.generating_args.include_stop_str_in_output",
        "flag",
        None,
        [True, False, None],
        "the tokens of a stop string are kept and trained on, with either value",
    ),
    mapped("actor_infer.generating_args.temperature", "number", 1.0, "sampling.temperature"),
    refused("actor_infer.generating_args.top_p", "number", 1.0, _FULL, accepts=[1.0]),
    refused("actor_infer.generating_args.top_k", "integer", 0, _FULL, accepts=[0, -1, None]),
    ignored("actor_infer.generating_args.max_new_tokens", "ROLL replaces it by response_length"),
    ignored("actor_infer.generating_args.num_return_sequences", "ROLL replaces it by num_return_sequences_in_group"),
    refused("actor_infer.generating_args.num_beams", "integer", 1, "completions are sampled", accepts=[1]),
    ignored("actor_infer.data_args.*", "the coordinator renders each prompt once"),
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
    ignored("actor_infer.strategy_args.strategy_config.*", "a detail of the engine"),
    ignored("actor_infer.device_mapping", _PLACES),
    ignored(
        "actor_infer.infer_batch_size", "the engine admits as many requests as its cache holds: generator.max_num_seqs"
    ),
    ignored("reference.*", "the learner loads the reference model when [kl] needs it"),
    ignored("validation.data_args.*", "evaluation.sources names the held-out questions"),
    ignored("validation.generating_args.*", "[evaluation] has the settings of evaluation"),
    ignored("validation.*", "evaluation.sources names the held-out questions"),
    refused("rewards", "any", None, _WORKERS),
    refused("rewards.*", "any", None, _WORKERS),
    Field("reward.*", "any", None, Fate.REFUSED, ("reward.model",), accepts=(None, False), why=_REWARD_MODEL),
    ignored("num_eval_prompts", "evaluation.sources names the held-out questions"),
]
