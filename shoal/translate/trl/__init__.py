"""TRL (huggingface/trl): GRPOConfig and related settings."""

import re

from shoal.translate.shared.system import System
from shoal.translate.trl.compose import compose
from shoal.translate.trl.fields import GRPO, TRAINING
from shoal.translate.trl.lora import LORA
from shoal.translate.trl.open_r1 import LAST_MONTH_OF
from shoal.translate.trl.script_fields import BESIDE, TOOLS
from shoal.translate.trl.versions import DEFAULTS_AS_OF, OLDER, OLDEST

TRL = System(
    name="trl",
    table=(*GRPO, *TRAINING, *BESIDE, *LORA),
    compose=compose,
    implied={
        "learner.weight_decay_on_bias_and_norm": (False, "transformers' Trainer leaves biases and norms undecayed"),
        "grpo.keep_zero_signal": (True, "TRL trains on groups of equal rewards too: they count in the divisor"),
    },
    programs=(re.compile(r"grpo\w*\.py$"), re.compile(r"^trl\.scripts\.grpo$"), re.compile(r"^trl grpo$")),
    calls=("GRPOConfig",),
    refused_calls={
        "AsyncGRPOConfig": "TRL's experimental asynchronous trainer has fields and a loss of its own; write its sizes "
        "as a GRPOConfig, and add --set grpo.max_staleness=N --set loss.baseline=behavior"
    },
    calls_beside=("GRPOTrainer", "LoraConfig", "BitsAndBytesConfig", "AutoModelForCausalLM.from_pretrained"),
    trainer="GRPOTrainer",
    positional_parameters={
        "GRPOTrainer": ("model", "reward_funcs", "args", "train_dataset"),
        "from_pretrained": ("pretrained_model_name_or_path",),
        "LoraConfig": ("task_type",),
    },
    functions=(
        "reward_funcs",
        *(f"GRPOTrainer.{name}" for name in ("reward_funcs", "peft_config", "quantization_config", *TOOLS)),
        *(f"GRPOTrainer.{name}" for name in ("callbacks", "eval_dataset", "optimizers", "reward_processing_classes")),
        "from_pretrained.quantization_config",
    ),
    datasets=("GRPOTrainer.train_dataset",),
    piecewise=("model_init_kwargs",),
    defaults_as_of=DEFAULTS_AS_OF,
    last_month_of=OLDEST | LAST_MONTH_OF | OLDER,
    model_field="model",
    data_field="train_dataset",
)
