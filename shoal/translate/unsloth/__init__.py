"""Unsloth (unslothai/unsloth): TRL's GRPOConfig with defaults and fields of its own."""

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
    calls_beside=(*TRL.calls_beside, "from_pretrained", "get_peft_model"),
    positional_parameters=TRL.positional_parameters,
    functions=TRL.functions,
    model_field="model",
    data_field="train_dataset",
)
