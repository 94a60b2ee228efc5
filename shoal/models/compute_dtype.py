"""The types in which a machine computes and in which it exports weights."""

import logging

from shoal.config.run import RunConfig

_log = logging.getLogger(__name__)


def settled_dtype(field: str, asked: str, usual: str, *, on_cpu: bool) -> str:
    """Returns the type that a field asks for. "auto" means `usual`, or float32 on a CPU without instructions for it.

    torch computes a type without instructions in software: bfloat16 took 116 times as long as float32 on a CPU that has
    only AVX2. A field that names a type without instructions gets this type, with a warning.
    """
    dtype = usual if asked == "auto" else asked
    if not on_cpu or has_instructions(dtype):
        return dtype
    if asked == "auto":
        return "float32"
    _log.warning(
        "%s is %s, and this CPU has no instructions for it: a step may take 100 times as long as in float32; set the "
        'field to "auto" or "float32"',
        field,
        dtype,
    )
    return dtype


def has_instructions(dtype: str) -> bool:
    """Returns whether this machine's CPU has instructions for "float32", "bfloat16" or "float16"."""
    import torch

    if dtype == "bfloat16":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype != "float16" or bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def published_dtype(config: RunConfig, model_dtype: str, learner_dtype: str, *, on_cpu: bool) -> str:
    """Returns the type of the tensors that the learner sends if its own forward pass computes in `learner_dtype`.

    bfloat16 drops most of what a step adds to a weight. A learner that computes in bfloat16 rounds its float32 weights
    in every forward pass, so an engine with the weights not rounded would sample from another policy: the difference
    was 0.3 nats after two steps of the quickstart. Adapters are not rounded into the weights.
    """
    if config.weights.dtype != "auto":
        return config.weights.dtype
    sampled = _sampled_dtype(config, model_dtype, on_cpu=on_cpu)
    return learner_dtype if sampled == "float32" and not config.learner.lora.is_on else sampled


def export_dtype(config: RunConfig, model_dtype: str, learner_dtype: str, *, on_cpu: bool) -> str:
    """Returns the type of an export: the type of the model's files, or float32 if the generators sample in float32.

    An export with less precision than the generators' weights would not be the policy that was evaluated.
    """
    is_exact = (
        _sampled_dtype(config, model_dtype, on_cpu=on_cpu)
        == published_dtype(config, model_dtype, learner_dtype, on_cpu=on_cpu)
        == "float32"
    )
    return "float32" if is_exact else model_dtype


def _sampled_dtype(config: RunConfig, model_dtype: str, *, on_cpu: bool) -> str:
    """Returns the type of the generators' weights. If it is open, assumes that they choose as this machine would."""
    if config.generator.dtype != "auto":
        return config.generator.dtype
    return settled_dtype("generator.dtype", "auto", model_dtype, on_cpu=on_cpu)
