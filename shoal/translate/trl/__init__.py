"""TRL (huggingface/trl): GRPOConfig and what stands beside it."""

import re

from shoal.translate.shared.system import System
from shoal.translate.trl.compose import compose
from shoal.translate.trl.fields import BESIDE, GRPO, TRAINING
from shoal.translate.trl.lora import LORA

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
    calls_beside=("GRPOTrainer", "LoraConfig"),
    positional_parameters=("model", "reward_funcs"),
    functions=("reward_funcs", "GRPOTrainer.reward_funcs", "GRPOTrainer.peft_config"),
    piecewise=("model_init_kwargs",),
    model_field="model",
    data_field="train_dataset",
)
