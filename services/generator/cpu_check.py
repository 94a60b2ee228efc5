"""The check of a model before vLLM loads it on a CPU."""

from dataclasses import replace
from typing import Any

from services.generator.model_check import CheckedModel
from shoal.error_reasons import ErrorReason
from shoal.errors import InvalidArgument
from shoal.models.head_sizes import head_sizes
from shoal.models.recurrent_layers import DELTA_HEAD_SIZE, delta_head_sizes, has_recurrent_layers

_BIASED_ROUTERS = (
    "its routers choose experts by a score with a bias. vLLM 0.32 ignores the bias on CPU, or ends at the first request"
)
_KERNELS = "vLLM 0.32 has the kernels of its recurrent layers for GPUs alone"
_REFUSED_KINDS = {
    "ernie4_5_moe": _BIASED_ROUTERS,
    "kimi_linear": _KERNELS,
    "minimax_m2": _BIASED_ROUTERS,
    "olmo_hybrid": _KERNELS,
}
"""The reason to refuse a kind of model (`model_type`) on a CPU. A kind with a single group of experts and a router's
bias has biased routers."""


def checked_on_cpu(checked: CheckedModel, *, trust_remote_code: bool) -> CheckedModel:
    """Returns the model with `has_state`.

    Raises `InvalidArgument` for a model that vLLM would compute wrongly on a CPU, or that would end its engine. Such a
    model is of a kind that vLLM's kernels on a CPU lack, or has heads or gated delta rules of another size or type than
    the kernels.
    """
    from transformers import AutoConfig
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    folder = checked.folder
    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    if (reason := _refusal(config.get_text_config())) is not None:
        raise InvalidArgument(
            f"model.path: {folder} is of the kind {config.get_text_config().model_type}, which cannot be sampled from "
            f"on CPU: {reason}; use another model, or a GPU",
            reason=ErrorReason.ENGINE_REFUSED,
        )
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
    supported = CPUAttentionBackend.get_supported_head_sizes()
    for size in head_sizes(config):
        if size not in supported:
            raise InvalidArgument(
                f"model.path: {folder} has heads of size {size}; vLLM on CPU supports only "
                f"{', '.join(map(str, supported))}; use another model, or a GPU",
                reason=ErrorReason.ENGINE_REFUSED,
            )
    return replace(checked, has_state=has_recurrent_layers(config))


def _refusal(text: Any) -> str | None:
    """Returns the reason why vLLM cannot compute a kind of model on a CPU, if there is one."""
    if text.model_type == "nemotron_h" and "moe" in text.layer_types:
        return "its experts have no gate, and vLLM 0.32 computes such experts on GPUs alone"
    return _REFUSED_KINDS.get(text.model_type)
