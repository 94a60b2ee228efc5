"""A correction of vLLM's activation for Apertus."""

from functools import wraps
from typing import Any

import torch
from vllm.model_executor.layers.activation import XIELU


def give_xielu_the_models_type() -> None:
    """Keeps the weights of the activation in the type of the model. vLLM 0.32 rounds them to bfloat16 in any model."""
    create = XIELU.__init__
    if hasattr(create, "__wrapped__"):
        return

    @wraps(create)
    def __init__(self: Any, *args: Any, **settings: Any) -> None:
        create(self, *args, **{"dtype": torch.get_default_dtype()} | settings)

    XIELU.__init__ = __init__
