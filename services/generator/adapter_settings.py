"""vLLM's settings for adapters: arguments of the engine, and the configuration next to each adapter's tensors."""

from collections.abc import Iterable
from math import prod
from typing import Any

from shoal.config.run import RunConfig
from shoal.config.tables.generator import ADAPTER_RANKS
from shoal.weights.adapter import layer_of


def adapter_arguments(config: RunConfig, tensors: Iterable[str]) -> dict[str, Any]:
    """Returns the engine's arguments for an adapter with these tensors.

    Only layers of the adapter are prepared for adapters, because a prepared layer costs time in every pass. The output
    head is never prepared: with a prepared head, vLLM would fail on scoring calls in a batch.
    """
    slots = num_slots(config)
    return {
        "enable_lora": True,
        "max_loras": slots,
        "max_cpu_loras": slots,
        "max_lora_rank": slot_rank(config),
        "lora_target_modules": sorted({layer_of(name).rpartition(".")[2] for name in tensors}),
    }


def num_slots(config: RunConfig) -> int:
    """Returns the number of versions whose completions can be decoded at the same time.

    A completion is trained on at most `grpo.max_staleness` versions later. So the current version and
    `grpo.max_staleness` older versions can be in flight, and a further version may be loading. Requests of other
    versions, for example of an evaluation, wait for a slot.
    """
    return config.grpo.max_staleness + 2


def slot_rank(config: RunConfig) -> int:
    """Returns the smallest rank that vLLM supports and that is at least the run's rank."""
    return next(rank for rank in ADAPTER_RANKS if rank >= config.learner.lora.rank)


def slots_bytes(config: RunConfig, shapes: Iterable[tuple[int, ...]], element_bytes: int) -> int:
    """Returns the memory of an engine's slots for an adapter with tensors of these shapes."""
    num_elements = sum(prod(shape) for shape in shapes) // config.learner.lora.rank * slot_rank(config)
    return num_slots(config) * num_elements * element_bytes


def adapter_config(config: RunConfig) -> dict[str, Any]:
    """Returns the contents of `adapter_config.json`, from which vLLM computes the scale of the update."""
    lora = config.learner.lora
    return {
        "peft_type": "LORA",
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "use_rslora": lora.rslora,
        "target_modules": list(lora.target_modules),
        "bias": "none",
    }
