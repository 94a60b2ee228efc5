"""Unsloth (unslothai/unsloth): TRL's GRPOConfig with Unsloth's own defaults and fields."""

from shoal.translate.shared.system import System
from shoal.translate.trl import TRL
from shoal.translate.unsloth.compose import compose
from shoal.translate.unsloth.fields import FIELDS

UNSLOTH = System(
    name="unsloth",
    table=FIELDS,
    compose=compose,
    implied=TRL.implied,
    piecewise=(*TRL.piecewise, "vllm_sampling_params"),
    programs=TRL.programs,
    calls=("GRPOConfig", "UnslothGRPOConfig"),
    calls_beside=(
        *TRL.calls_beside,
        *(f"{name}.from_pretrained" for name in ("FastLanguageModel", "FastModel", "FastVisionModel")),
        "get_peft_model",
        "get_chat_template",
    ),
    trainer=TRL.trainer,
    positional_parameters={
        **TRL.positional_parameters,
        "from_pretrained": ("model_name", "max_seq_length"),
        "get_peft_model": ("", "r", "target_modules"),
        "get_chat_template": ("", "chat_template"),
    },
    functions=TRL.functions,
    datasets=TRL.datasets,
    measured=("max_prompt_length", "max_completion_length"),
    model_field="model",
    data_field="train_dataset",
)
