"""Language models of transformers: their configuration, the empty model, and the model with its weights."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn

from services.learner.model.machine_errors import raise_machine_error
from services.learner.model.weights import list_weights
from shoal.config.tables.lora import Quantization
from shoal.errors import InvalidArgument
from shoal.models.remote_code import reason_of
from shoal.models.text_part import auto_class, keep_text_part

# On a CPU each import of bitsandbytes logs the advice to install a faster kernel from the internet.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
_LOADING_ERRORS = (OSError, ValueError, RuntimeError, MemoryError, SafetensorError, StrictDataclassError)


def read_config(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Returns the transformers configuration in a folder. Raises `InvalidArgument` when there is no configuration."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except _LOADING_ERRORS as error:
        raise _not_loaded(folder, error) from error


def load_whole(
    folder: Path, dtype: torch.dtype, *, trust_remote_code: bool = False, quantization: Quantization = "none"
) -> Any:
    """Loads a causal language model with the weights of its text part into host memory, without dropout.

    Weights with `Weight.is_float32` are float32 whatever the `dtype`. With `quantization` all linear layers but the
    output layer contain 4-bit codes (QLoRA, arXiv:2305.14314). Raises
    `InvalidArgument` when the folder contains no such model, and `ResourceExhausted` when memory is full.
    """
    from transformers import BitsAndBytesConfig
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    options: dict[str, Any] = {}
    if quantization != "none":
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type=quantization, bnb_4bit_compute_dtype=dtype
        )
    try:
        config = read_config(folder, trust_remote_code=trust_remote_code)
        is_lower = dtype != torch.float32
        with _keeping_float32(config, trust_remote_code=trust_remote_code) if is_lower else nullcontext():
            lm = auto_class(config).from_pretrained(
                folder, dtype=dtype, attn_implementation="eager", trust_remote_code=trust_remote_code, **options
            )
    except _LOADING_ERRORS as error:
        raise_machine_error(error)
        raise _not_loaded(folder, error) from error
    keep_text_part(lm)
    for module in lm.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            # On a CPU bitsandbytes would repack the codes in the first forward pass without gradient, for a kernel that
            # computes in bfloat16 and has no backward pass.
            module.support_avx512bf16_for_cpu = False
    return _without_dropout(lm)


@contextmanager
def _keeping_float32(config: Any, *, trust_remote_code: bool) -> Iterator[None]:
    """Makes transformers load the weights of `Weight.is_float32` in float32 in a context, also beside lower types."""
    with torch.device("meta"):
        lm = make_empty(config, torch.float32, trust_remote_code=trust_remote_code)
    kind, name = type(lm), "_keep_in_fp32_modules_strict"
    # transformers takes such names only from the class.
    before = getattr(kind, name)
    setattr(kind, name, [*(before or ()), *(weight.name for weight in list_weights(lm) if weight.is_float32)])
    try:
        yield
    finally:
        setattr(kind, name, before)


def make_empty(config: Any, dtype: torch.dtype, *, trust_remote_code: bool = False) -> Any:
    """Makes the causal language model of a configuration, without dropout and with undefined weights.

    Only the text part is made. Raises `ValueError` when transformers knows no such model.
    """
    from transformers.initialization import no_init_weights

    with no_init_weights():
        lm = auto_class(config).from_config(
            config, dtype=dtype, attn_implementation="eager", trust_remote_code=trust_remote_code
        )
    # Tying is part of the initialization that was left out.
    lm.tie_weights()
    return _without_dropout(keep_text_part(lm))


def _without_dropout(lm: Any) -> Any:
    # A policy must be a function of its weights alone: with dropout the ratio to the behavior policy would be noise.
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return lm.eval()


def _not_loaded(folder: Path, error: Exception) -> InvalidArgument:
    return InvalidArgument(f"model.path: {folder} cannot be loaded as a causal language model: {reason_of(error)}")
