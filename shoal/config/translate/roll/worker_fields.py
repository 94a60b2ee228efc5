"""ROLL's settings of single workers (actor_train, actor_infer, reference, rewards), one row each."""

from shoal.config.translate.fields import (
    Fate,
    Field,
    accepted,
    choice,
    composed,
    ignored,
    mapped,
    refused,
    text_list,
)

_PLACES = "where processes run is the deployment's; `shoal train` starts all of them on one machine"
_BATCHES = "gradients do not depend on how rows are cut into micro-batches"
_FULL = (
    "sampling from less than the full distribution biases the importance ratio, since the learner normalizes over all"
)
_TRACKS = "every run writes metrics.jsonl"

_WORKERS = (
    "ROLL gives each domain a reward worker by the rows' tag; here a row's verifier judges it: give data.sources "
    'verifier_column = "tag", and reward.remap from each tag to a verifier'
)

SPLITS = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "ulysses_size")
"""How many ranks of a strategy share one model, or one row."""

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
        choice({None: "auto", "auto": "auto", "fa2": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}),
        aliases=["actor_train.model_args.flash_attn"],
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
    composed("actor_train.data_args.domain_interleave_probs", "table", None, "data.sources", why="of one domain alone"),
    composed("actor_train.data_args.interleave_probs", "numbers", None, "data.sources", why="of one file alone"),
    ignored("actor_train.data_args.preprocessing_num_workers", "data is read by the coordinator"),
    composed("actor_train.strategy_args.strategy_name", "text", None, "learner.zero_stage"),
    composed(
        "actor_train.strategy_args.strategy_config",
        "any",
        None,
        "learner.zero_stage learner.offload_parameters learner.offload_optimizer",
        why="ROLL's own files of DeepSpeed settings, by their names",
    ),
    *(
        composed(f"actor_train.strategy_args.strategy_config.{name}", "integer", 1, "grpo.num_mini_batches")
        for name in SPLITS
    ),
    ignored("actor_train.strategy_args.strategy_config.*", "learners are DeepSpeed's; how they share is in [learner]"),
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
        refused(f"actor_train.model_args.{name}", "any", None, "LoRA and quantized training are put off")
        for name in ("lora_alpha", "lora_dropout", "additional_target")
    ),
    ignored("actor_train.model_args.device_map", _PLACES),
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
    Field("reward.*", "any", None, Fate.REFUSED, ("reward.model",), accepts=(None, False), why=_REWARD_MODEL),
    ignored("num_eval_prompts", "held-out questions are given in evaluation.sources"),
]
