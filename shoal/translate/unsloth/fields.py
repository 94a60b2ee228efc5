"""Unsloth's fields: TRL's fields with other defaults, and additional fields."""

from dataclasses import replace

from shoal.translate.shared.field import Field, accepted, composed, each, ignored, mapped, not_yet, refused, rows
from shoal.translate.trl import TRL

_MEMORY = "a way to save memory on one GPU; here learner.logits_chunk_tokens splits the logits"
_TEMPLATE = "Shoal does not know this template: --skip it, and set model.chat_template unless the model's own fits"
_LOADS = "each service reads the model as its files define it"

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
    "logging_steps": 1,
    "loss_type": None,
    "beta": None,
}

_ADDED: list[Field] = rows(
    ignored("unsloth_num_chunks unsloth_logit_chunk_multiplier unsloth_grpo_mini_batch offload_embedding", _MEMORY),
    composed("vllm_sampling_params", "table", None, "sampling.stop_strings sampling.temperature"),
    composed("max_seq_length", "integer", None, "generator.max_model_len", aliases=["from_pretrained.max_seq_length"]),
    mapped(
        "from_pretrained.gpu_memory_utilization",
        "number",
        0.5,
        "generator.gpu_memory_utilization",
        aliases=["gpu_memory_utilization"],
    ),
    ignored(
        "full_finetuning",
        "the file trains adapters if it calls get_peft_model, else all weights",
        aliases=["from_pretrained.full_finetuning"],
    ),
    *each(
        ignored("from_pretrained.", _LOADS),
        "unsloth_vllm_standby use_gradient_checkpointing random_state fix_tokenizer disable_log_stats "
        "offload_embedding unsloth_tiled_mlp use_exact_model_name",
    ),
    refused("get_chat_template.chat_template", "any", None, _TEMPLATE, accepts=[None]),
    composed("lora_rank", "integer", None, "learner.lora", aliases=["max_lora_rank"]),
    ignored("from_pretrained.max_lora_rank", "learner.lora.rank decides it"),
    composed("from_pretrained.load_in_4bit", "flag", True, "learner.lora"),
    not_yet("from_pretrained.load_in_8bit", "flag", False, "quantized training"),
    not_yet("from_pretrained.load_in_fp8", "any", False, "FP8 rollout"),
    not_yet("from_pretrained.float8_kv_cache", "flag", False, "FP8 rollout"),
    ignored("from_pretrained.load_in_16bit", "the model is loaded as its files define it"),
    composed("get_peft_model.r get_peft_model.lora_alpha", "integer", 16, "learner.lora"),
    composed("get_peft_model.lora_dropout", "number", 0.0, "learner.lora"),
    composed("get_peft_model.target_modules", "texts", None, "learner.lora"),
    composed("get_peft_model.use_rslora", "flag", False, "learner.lora"),
    accepted("get_peft_model.bias", "any", "none", "biases stay frozen", accepts=[None]),
    not_yet("get_peft_model.finetune_vision_layers", "flag", False, "vision"),
    *each(
        accepted("get_peft_model.", "flag", True, "learner.lora.target_modules names the layers"),
        "finetune_language_layers finetune_attention_modules finetune_mlp_modules",
    ),
    *each(
        ignored("get_peft_model.", "the learner recomputes activations, and seeds adapters from run.seed"),
        "use_gradient_checkpointing random_state max_seq_length",
    ),
    *each(
        refused("get_peft_model.", "any", None, "Shoal trains only LoRA adapters on linear layers", accepts=[None, {}]),
        "loftq_config modules_to_save layers_to_transform",
    ),
    refused("get_peft_model.*", "any", None, "Shoal has no such option of LoRA"),
    accepted("fast_inference", "flag", None, "completions are always sampled by vLLM", accepts=[True, False]),
    ignored("from_pretrained.fast_inference", "completions are always sampled by vLLM"),
)

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
