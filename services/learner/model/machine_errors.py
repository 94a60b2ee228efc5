"""Errors that come from the machine on which a model is loaded, and not from the model's files."""

import torch

from shoal.errors import ResourceExhausted
from shoal.full_memory import is_out_of_memory


def raise_machine_error(error: Exception) -> None:
    """Raises an error of loading a model if the machine is the cause; else returns.

    Full memory becomes `ResourceExhausted`. Another fault of the GPU is raised unchanged.
    """
    if is_out_of_memory(error):
        raise ResourceExhausted(
            "the model does not fit the free memory of this learner rank: train with more ranks "
            "(launch.num_learner_ranks) and learner.zero_stage 3, or train adapters (learner.lora.rank); with "
            f"launch.single_gpu, lower generator.gpu_memory_utilization. The error: {error}"
        ) from error
    if isinstance(error, torch.AcceleratorError):
        raise error


def memory_cure(error: BaseException) -> str:
    """Returns which fields to change if an error says that memory is full; empty for other errors."""
    if not is_out_of_memory(error):
        return ""
    return (
        "; lower learner.pack_tokens or learner.logits_chunk_tokens, set learner.gradient_checkpointing to true, or "
        "raise launch.num_learner_ranks with learner.zero_stage 3; with launch.single_gpu, lower "
        "generator.gpu_memory_utilization"
    )
