"""Unsloth (unslothai/unsloth): TRL's GRPOConfig with defaults and fields of its own."""

from dataclasses import replace

from shoal.config.translate.draft import Draft, Source
from shoal.config.translate.fields import Field, composed, ignored, refused
from shoal.config.translate.system import System
from shoal.config.translate.trl import TRL
from shoal.config.translate.trl.compose import compose as compose_trl

_MEMORY = "how memory is saved on one GPU; here logits are cut by learner.logits_chunk_tokens"
_LORA = "LoRA and quantized training are put off: all weights are trained"

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

_OWN: list[Field] = [
    *(
        ignored(name, _MEMORY)
        for name in (
            "unsloth_num_chunks",
            "unsloth_logit_chunk_multiplier",
            "unsloth_grpo_mini_batch",
            "offload_embedding",
            "vllm_sampling_params",
        )
    ),
    composed("max_seq_length", "integer", None, "generator.max_model_len"),
    refused("lora_rank", "integer", None, _LORA),
    refused("max_lora_rank", "integer", None, _LORA),
    refused("load_in_8bit", "flag", False, _LORA),
    refused("fast_inference", "flag", None, "completions are always sampled by vLLM", accepts=[True, None]),
]


def _compose(source: Source, draft: Draft) -> None:
    compose_trl(_WithLossType(source), draft)
    length = source["max_seq_length"]
    if length is not None:
        draft.set("generator.max_model_len", length, source.origin("max_seq_length"))
        if not source.is_given("max_prompt_length"):
            prompt = max(1, length - source["max_completion_length"])
            draft.set("data.max_prompt_tokens", prompt, source.origin("max_seq_length", "max_completion_length"))


class _WithLossType(Source):
    """Unsloth's rules for what is not given: dapo; beta 0, but 0.001 where the loss is neither dapo nor Dr. GRPO's."""

    def __init__(self, source: Source) -> None:
        self.__dict__ = source.__dict__

    def __getitem__(self, name: str) -> object:
        value = super().__getitem__(name)
        if name == "loss_type":
            return value or "dapo"
        if name == "beta" and value is None:
            return 0.0 if self["loss_type"] in ("dapo", "dr_grpo") else 0.001
        if name == "scale_rewards" and self["loss_type"] == "dr_grpo":
            return "none"
        return value


UNSLOTH = System(
    name="unsloth",
    table=(
        *(replace(row, default=_DEFAULTS[row.name]) if row.name in _DEFAULTS else row for row in TRL.table),
        *_OWN,
    ),
    compose=_compose,
    implied=TRL.implied,
    programs=TRL.programs,
    calls=("GRPOConfig", "UnslothGRPOConfig"),
    model_field="model",
    data_field="train_dataset",
)
