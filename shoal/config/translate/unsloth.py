"""Unsloth (unslothai/unsloth): TRL's GRPOConfig with defaults and fields of its own."""

from dataclasses import replace
from typing import Any

from shoal.config.translate.draft import Draft, Source
from shoal.config.translate.fields import Field, accepted, composed, ignored, mapped, refused, text_list
from shoal.config.translate.python import Unread
from shoal.config.translate.system import System
from shoal.config.translate.trl import TRL
from shoal.config.translate.trl.compose import compose as compose_trl
from shoal.config.translate.trl.fields import FULL

_MEMORY = "how memory is saved on one GPU; here logits are cut by learner.logits_chunk_tokens"
_LOADS = "each service reads the model as its files have it"
_LORA_OF = "LoRA's, which is refused by get_peft_model's r"
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
    refused("lora_rank", "integer", None, _LORA),
    refused("max_lora_rank", "integer", None, _LORA),
    ignored("from_pretrained.max_lora_rank", _LORA_OF),
    refused("from_pretrained.load_in_4bit", "flag", None, _LORA),
    refused("from_pretrained.load_in_8bit", "flag", False, _LORA),
    refused("get_peft_model.r", "integer", None, _LORA),
    refused("get_peft_model.target_modules", "any", None, _LORA),
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
_NEUTRAL = {"top_p": (1,), "top_k": (-1, 0), "min_p": (0,), "repetition_penalty": (1,)}
_NEUTRAL |= {"presence_penalty": (0,), "frequency_penalty": (0,)}
_NOT_OF_SAMPLING = ("include_stop_str_in_output", "seed", "max_tokens", "n", "logprobs", "skip_special_tokens")


def _sampling(source: Source, draft: Draft) -> None:
    """What vLLM is told besides: it comes before GRPOConfig's own settings."""
    name = "vllm_sampling_params"
    for key, value in (source[name] or {}).items():
        if key in _NOT_OF_SAMPLING or value in _NEUTRAL.get(key, ()):
            continue
        if key == "temperature" and isinstance(value, int | float):
            draft.set("sampling.temperature", value, source.origin(name))
        elif key == "stop" and isinstance(value, str | list):
            draft.set("sampling.stop_strings", text_list(value), source.origin(name))
        elif key == "stop" and isinstance(value, Unread) and value.text.strip("[]").endswith(".eos_token"):
            draft.notes.append(f"{name}: completions end at the end-of-sequence token anyway")
        elif isinstance(value, Unread):
            draft.refuse(name, f"{key} = {value.text}", "cannot be read without running the file")
        else:
            draft.refuse(name, f"{key} = {value}", FULL if key in _NEUTRAL else "known: stop and temperature")


def _compose(source: Source, draft: Draft) -> None:
    grown = _WithLossType(source)["per_device_train_batch_size"]
    if grown != source["per_device_train_batch_size"]:
        draft.notes.append(
            f"per_device_train_batch_size = {source['per_device_train_batch_size']}: Unsloth makes it num_generations "
            f"({grown}), since a generation batch must hold whole groups"
        )
    compose_trl(_WithLossType(source), draft)
    _sampling(source, draft)
    is_dapo = source.is_given("loss_type") and source["loss_type"] == "dapo"
    if is_dapo and not source.is_given("mask_truncated_completions"):
        draft.set("grpo.mask_truncated_completions", True, source.origin("loss_type"))
    length = source["max_seq_length"]
    if length is not None:
        draft.set("generator.max_model_len", length, source.origin("max_seq_length"))
        if not source.is_given("max_prompt_length"):
            prompt = max(1, length - source["max_completion_length"])
            draft.set("data.max_prompt_tokens", prompt, source.origin("max_seq_length", "max_completion_length"))


_BY_LOSS: dict[tuple[str, object], object] = {
    ("epsilon_high", "dapo"): 0.28,
    ("epsilon_high", "cispo"): 5.0,
}


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
        if name == "per_device_train_batch_size" and self._cuts_groups(value):
            return super().__getitem__("num_generations")
        if name == "scale_rewards" and self["loss_type"] == "dr_grpo" and value in (True, "group"):
            return "none"
        if self.is_given("loss_type") and not self.is_given(name):
            # Unsloth follows the papers where the loss is asked for by name.
            return _BY_LOSS.get((name, super().__getitem__("loss_type")), value)
        return value

    def _cuts_groups(self, device: Any) -> bool:
        """Whether a generation batch would hold a part of a group: then Unsloth takes a group for each device."""
        if self.is_given("generation_batch_size") or self.is_given("steps_per_generation"):
            return False
        names = ("gradient_accumulation_steps", "num_processes", "num_generations")
        accumulation, processes, generations = (max(1, super(_WithLossType, self).__getitem__(name)) for name in names)
        return bool(device * accumulation * processes % generations)


UNSLOTH = System(
    name="unsloth",
    table=(
        *(
            replace(
                row,
                default=_DEFAULTS.get(row.name, row.default),
                aliases=(*row.aliases, "from_pretrained.model_name")
                if row.name == "model_name_or_path"
                else row.aliases,
            )
            for row in TRL.table
        ),
        *_OWN,
    ),
    compose=_compose,
    implied=TRL.implied,
    piecewise=(*TRL.piecewise, "vllm_sampling_params"),
    programs=TRL.programs,
    calls=("GRPOConfig", "UnslothGRPOConfig"),
    calls_beside=(*TRL.calls_beside, "from_pretrained", "get_peft_model"),
    places=TRL.places,
    functions=TRL.functions,
    model_field="model",
    data_field="train_dataset",
)
