"""Unsloth's fields: TRL's with other defaults, and those that it adds."""

from dataclasses import replace

from shoal.translate.shared.field import Field, accepted, composed, ignored, mapped, not_yet
from shoal.translate.trl import TRL

_MEMORY = "a way to save memory on one GPU; here learner.logits_chunk_tokens splits the logits"
_LOADS = "each service reads the model as its files define it"
_LORA_OF = "an option of LoRA, which is refused at r of get_peft_model"

_DEFAULTS = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": 5e-5,
    "warmup_ratio": 0.1,
    "weight_decay": 0.001,
    "optim": "adamw_8bit",
    "seed": 3407,
    "num_generations": 8,
    "vllm_importance_sampling_correction": False,
    "loss_type": None,
    "beta": None,
}

_ADDED: list[Field] = [
    *(
        ignored(name, _MEMORY)
        for name in (
            "unsloth_num_chunks",
            "unsloth_logit_chunk_multiplier",
            "unsloth_grpo_mini_batch",
            "offload_embedding",
        )
    ),
    composed("vllm_sampling_params", "table", None, "sampling.stop_strings sampling.temperature"),
    composed("max_seq_length", "integer", None, "generator.max_model_len", aliases=["from_pretrained.max_seq_length"]),
    mapped(
        "from_pretrained.gpu_memory_utilization",
        "number",
        0.5,
        "generator.gpu_memory_utilization",
        aliases=["gpu_memory_utilization"],
    ),
    ignored("full_finetuning", "all weights are trained", aliases=["from_pretrained.full_finetuning"]),
    *(
        ignored(f"from_pretrained.{name}", _LOADS)
        for name in ("dtype", "token", "device_map", "unsloth_vllm_standby", "use_gradient_checkpointing")
    ),
    not_yet("lora_rank", "integer", None, "LoRA"),
    not_yet("max_lora_rank", "integer", None, "LoRA"),
    ignored("from_pretrained.max_lora_rank", _LORA_OF),
    not_yet("from_pretrained.load_in_4bit", "flag", None, "LoRA"),
    not_yet("from_pretrained.load_in_8bit", "flag", False, "LoRA"),
    not_yet("get_peft_model.r", "integer", None, "LoRA"),
    not_yet("get_peft_model.target_modules", "any", None, "LoRA"),
    ignored("get_peft_model.*", _LORA_OF),
    accepted(
        "fast_inference",
        "flag",
        None,
        [True, False, None],
        "completions are always sampled by vLLM",
    ),
    ignored("from_pretrained.fast_inference", "completions are always sampled by vLLM"),
]

FIELDS: tuple[Field, ...] = (
    *(
        replace(
            row,
            default=_DEFAULTS.get(row.name, row.default),
            aliases=(*row.aliases, "from_pretrained.model_name") if row.name == "model_name_or_path" else row.aliases,
        )
        for row in TRL.table
    ),
    *_ADDED,
)
