"""The check of a model before vLLM loads it on a CPU."""

from dataclasses import replace

from services.generator.model_check import CheckedModel
from shoal.error_reasons import ErrorReason
from shoal.errors import InvalidArgument
from shoal.models.head_sizes import head_sizes
from shoal.models.recurrent_layers import DELTA_HEAD_SIZE, delta_head_sizes, has_recurrent_layers

_BIASED_ROUTERS = ("ernie4_5_moe", "minimax_m2")
"""Kinds of models with a router's bias and one group of experts. vLLM does not support such models on CPU. vLLM ignores
the bias of the first kind, and the engine ends at the first request to a model of the second kind."""


def checked_on_cpu(checked: CheckedModel, *, trust_remote_code: bool) -> CheckedModel:
    """Returns the model with `has_state`.

    Raises `InvalidArgument` for a model that vLLM would compute wrongly on a CPU, or that would end its engine. Such a
    model has a head size without CPU attention, a router that vLLM computes differently, or gated delta rules of
    another type or size than vLLM's kernel.
    """
    from transformers import AutoConfig
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    folder = checked.folder
    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    if delta_sizes := delta_head_sizes(config):
        if checked.dtype != "bfloat16":
            raise InvalidArgument(
                f"generator.dtype: {folder} has gated delta rules, which vLLM on CPU computes in bfloat16 alone, but "
                f'the engine would compute in {checked.dtype}: set generator.dtype to "bfloat16"',
                reason=ErrorReason.ENGINE_REFUSED,
            )
        if delta_sizes != {DELTA_HEAD_SIZE}:
            raise InvalidArgument(
                f"model.path: {folder} has gated delta rules with heads of size {', '.join(map(str, delta_sizes))}; "
                f"vLLM on CPU supports only {DELTA_HEAD_SIZE}; use another model, or a GPU",
                reason=ErrorReason.ENGINE_REFUSED,
            )
    if (kind := config.get_text_config().model_type) in _BIASED_ROUTERS:
        raise InvalidArgument(
            f"model.path: {folder} is of the kind {kind}, whose routers choose experts by a score with a bias. vLLM "
            "0.32 cannot compute such routers on CPU: use another model, or a GPU",
            reason=ErrorReason.ENGINE_REFUSED,
        )
    supported = CPUAttentionBackend.get_supported_head_sizes()
    for size in head_sizes(config):
        if size not in supported:
            raise InvalidArgument(
                f"model.path: {folder} has heads of size {size}; vLLM on CPU supports only "
                f"{', '.join(map(str, supported))}; use another model, or a GPU",
                reason=ErrorReason.ENGINE_REFUSED,
            )
    return replace(checked, has_state=has_recurrent_layers(config))
