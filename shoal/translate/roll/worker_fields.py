"""ROLL's settings of the worker that trains, actor_train, one row each; `common` lists the settings of every worker."""

from shoal.translate.roll.run_fields import PLACES
from shoal.translate.shared.field import Fate, Field, choice, composed, each, ignored, mapped, not_yet, refused

TRAINING = "actor_train.training_args"
STRATEGY_NAME = "actor_train.strategy_args.strategy_name"
STRATEGY = "actor_train.strategy_args.strategy_config"
MODEL = "actor_train.model_args"
DATA = "actor_train.data_args"

_BATCHES = "gradients do not depend on micro-batches: learner.pack_tokens decides their size"
_READ = "the coordinator reads the data"
_SHARDING = "learner.zero_stage, sequence_parallel_size and offload_* decide how the ranks of DeepSpeed share the model"

SPLITS = (
    f"{STRATEGY}.tensor_model_parallel_size",
    f"{STRATEGY}.pipeline_model_parallel_size",
    f"{STRATEGY}.context_parallel_size",
    f"{STRATEGY}.ulysses_size",
    f"{MODEL}.ulysses_size",
)
"""Fields for the number of ranks that share a model or a row."""

_REWARD_MODEL = (
    "a reward model scores the rows whose verifier is reward_model: give --set reward.model.path=MODEL, and set "
    'verifier = "reward_model" in data.sources'
)


def common(worker: str) -> list[Field]:
    """Returns the rows for settings that every worker has."""
    return [
        *each(
            ignored(f"{worker}.", PLACES),
            "name world_size num_gpus_per_worker max_concurrency backend_timeout offload_nccl system_envs "
            "system_envs.*",
        ),
        *each(
            ignored(f"{worker}.", _BATCHES),
            "infer_batch_size use_dynamic_batching_in_train max_tokens_per_microbatch_in_train "
            "sequence_length_round_in_train use_dynamic_batching_in_infer max_tokens_per_microbatch_in_infer "
            "sequence_length_round_in_infer use_sequence_packing sequence_packing_args sequence_packing_args.* "
            "use_remove_padding",
        ),
        ignored(f"{worker}.logits_in_fp32", "log-probabilities are always computed in float32"),
        *each(
            ignored(f"{worker}.", "log-probabilities do not depend on chunks: learner.logits_chunk_tokens"),
            "use_logits_chunking logits_chunk_size",
        ),
        not_yet(f"{worker}.router_replay.mode", "text", "disable", "mixture of experts", accepts=(None, "disable")),
        not_yet(
            f"{worker}.mtp_training_mode", "text", "disabled", "multi-token prediction", accepts=(None, "disabled")
        ),
        refused(
            f"{worker}.model_update_frequency",
            "integer",
            1,
            "generators get the weights of every train step; grpo.max_staleness lets them sample ahead",
        ),
        refused(
            f"{worker}.apply_loss_scale",
            "flag",
            True,
            "the loss is divided by the counts of the whole mini-batch, as with apply_loss_scale true",
            accepts=(True,),
        ),
        ignored(f"{worker}.checkpoint_config", "Shoal creates the run's folder below --data-dir"),
    ]


def model_rows(worker: str) -> list[Field]:
    """Returns the rows for settings of a model that every worker has."""
    return [
        ignored(f"{worker}.model_args.model_type", "the model's config.json names its type"),
        ignored(f"{worker}.model_args.num_labels", "the policy is a language model"),
        *each(ignored(f"{worker}.model_args.", PLACES), "device_map vision_dp"),
        ignored(
            f"{worker}.model_args.gradient_checkpointing_use_reentrant",
            "learner.gradient_checkpointing has one implementation",
        ),
        ignored(f"{worker}.model_args.autocast_adapter_dtype", "adapters are float32"),
        refused(
            f"{worker}.model_args.model_config_kwargs",
            "any",
            None,
            "Shoal uses the model's own config.json: change that file instead",
            accepts=(None, {}),
        ),
        refused(f"{worker}.model_args.model_config_kwargs.*", "any", None, "Shoal uses the model's own config.json"),
        not_yet(f"{worker}.model_args.moe_aux_loss_coef", "number", None, "mixture of experts", accepts=(None, 0.0)),
    ]


WORKERS: list[Field] = [
    composed("actor_train.worker_cls", "text", None, "loss.objective", why="ROLL's ActorWorker or ActorPGWorker"),
    composed(f"{TRAINING}.learning_rate", "number", 5e-5, "learner.learning_rate"),
    composed(
        f"{TRAINING}.weight_decay",
        "number",
        0.0,
        "learner.weight_decay learner.weight_decay_on_bias_and_norm",
        why="ROLL's Megatron and DeepSpeed leave biases and norms undecayed",
    ),
    composed(f"{TRAINING}.warmup_steps", "integer", 0, "learner.warmup_steps"),
    composed(f"{TRAINING}.warmup_ratio", "number", 0.0, "learner.warmup_ratio", why="without warmup_steps"),
    mapped(f"{TRAINING}.adam_beta1", "number", 0.9, "learner.adam_beta1"),
    mapped(f"{TRAINING}.adam_beta2", "number", 0.999, "learner.adam_beta2"),
    composed(
        f"{TRAINING}.lr_scheduler_type",
        "text",
        "linear",
        "learner.lr_scheduler",
        why="Megatron's constant has a warm-up, transformers' has none",
    ),
    composed(f"{TRAINING}.per_device_train_batch_size", "integer", 8, "grpo.num_mini_batches"),
    composed(f"{TRAINING}.gradient_accumulation_steps", "integer", 1, "grpo.num_mini_batches"),
    *each(ignored(f"{TRAINING}.", "max_steps of the pipeline decides: run.num_steps"), "num_train_epochs max_steps"),
    *each(ignored(f"{TRAINING}.", "ROLL replaces it by the pipeline's: run.seed"), "seed data_seed"),
    *each(ignored(f"{TRAINING}.", "model_args.dtype decides: learner.compute_dtype"), "bf16 fp16"),
    ignored(f"{TRAINING}.tf32", "a setting of torch: TORCH_ALLOW_TF32_CUBLAS_OVERRIDE in the learner's environment"),
    *each(ignored(f"{TRAINING}.", "every run writes metrics.jsonl"), "logging_steps output_dir save_steps"),
    ignored(f"{TRAINING}.save_hf_model", "the trained model is exported as a Hugging Face folder (docs/exports.md)"),
    ignored(f"{TRAINING}.dataloader_num_workers", _READ),
    mapped(
        f"{MODEL}.disable_gradient_checkpointing", "flag", False, "learner.gradient_checkpointing", lambda off: not off
    ),
    mapped(
        f"{MODEL}.dtype",
        "text",
        "bf16",
        "learner.compute_dtype",
        choice({"bf16": "auto", "bfloat16": "auto", "fp32": "float32", "float32": "float32"}),
    ),
    mapped(
        f"{MODEL}.attn_implementation",
        "text",
        None,
        "learner.attention",
        choice({None: "auto", "auto": "auto", "fa2": "auto", "sdpa": "sdpa", "eager": "eager"}),
        aliases=[f"{MODEL}.flash_attn"],
    ),
    composed(f"{MODEL}.model_name_or_path", "text", None, "model.path"),
    composed(f"{MODEL}.lora_target", "any", None, "learner.lora", why="all is every linear layer; no patterns"),
    composed(f"{MODEL}.lora_rank", "integer", 8, "learner.lora"),
    composed(f"{MODEL}.lora_alpha", "integer", None, "learner.lora", why="2 x lora_rank by default"),
    composed(f"{MODEL}.lora_dropout", "number", 0.0, "learner.lora"),
    refused(f"{MODEL}.additional_target", "any", None, "only the adapters are trained, and no other modules"),
    refused(
        f"{MODEL}.adapter_name_or_path",
        "any",
        None,
        "adapters begin at zero: merge the earlier one into the model first",
    ),
    composed(f"{MODEL}.freeze_module_prefix", "any", None, "learner.freeze"),
    *model_rows("actor_train"),
    composed(f"{DATA}.file_name", "texts", None, "data.sources"),
    composed(f"{DATA}.messages", "text", "messages", "data.sources"),
    composed(f"{DATA}.tag", "text", "tag", "data.sources"),
    ignored(f"{DATA}.dataset_dir", "ROLL's pipeline reads file_name as it is"),
    composed(f"{DATA}.enable_thinking", "flag", None, "model.chat_template_kwargs"),
    *each(
        not_yet(f"{DATA}.", "any", None, "vision"),
        "image_max_pixels image_min_pixels image_folder video_max_pixels video_min_pixels video_total_pixels video_fps "
        "video_max_frames video_resize_chunk_frames video_folder audio_folder custom_data_kwargs_func",
    ),
    composed(
        f"{DATA}.template",
        "text",
        "native",
        "model.chat_template model.chat_template_kwargs",
        why="all but chatml are the tokenizer's own, some with enable_thinking = false",
    ),
    composed(f"{DATA}.domain_interleave_probs", "table", None, "data.sources", why="shares of the prompts of the run"),
    composed(f"{DATA}.interleave_probs", "numbers", None, "data.sources", why="for a single file only"),
    composed(f"{DATA}.prompt", "text", None, "data.sources", why="a column of text without a chat template is refused"),
    composed(f"{DATA}.max_samples", "integer", None, "data.sources"),
    ignored(f"{DATA}.eval_file_name", "ROLL reads validation.data_args.file_name: evaluation.sources"),
    *each(
        ignored(f"{DATA}.", _READ),
        "preprocessing_num_workers rollout_dataloader_num_workers rollout_dataloader_batch_size cache_path "
        "dataset_type id response",
    ),
    composed(STRATEGY_NAME, "text", None, "learner.zero_stage"),
    composed(
        STRATEGY,
        "any",
        None,
        "learner.zero_stage learner.offload_parameters learner.offload_optimizer",
        why="ROLL's own DeepSpeed files, by name",
    ),
    *(
        composed(name, "integer", 1, "grpo.num_mini_batches", why="the number of ranks that share a model or a row")
        for name in SPLITS
    ),
    mapped(f"{STRATEGY}.zero_optimization.stage", "integer", 2, "learner.zero_stage"),
    *each(
        not_yet(f"{STRATEGY}.", "integer", 1, "mixture of experts", accepts=(None, 1)),
        "expert_model_parallel_size ep_size efsdp_size",
    ),
    *each(
        refused(f"{STRATEGY}.", "any", None, "the learner computes in float32 or bfloat16: learner.compute_dtype"),
        "fp8 fp8_recipe fp8_param fp4",
    ),
    *each(
        refused(f"{STRATEGY}.", "number", None, "the policy is trained without dropout", accepts=(None, 0.0)),
        "attention_dropout hidden_dropout",
    ),
    ignored(f"{STRATEGY}.*", _SHARDING),
    composed("actor_train.device_mapping", "any", None, "launch.num_learner_ranks"),
    *common("actor_train"),
    Field("reward.*", "any", None, Fate.REFUSED, ("reward.model",), accepts=(None, False), why=_REWARD_MODEL),
]
