"""ROLL's ranks, and the number of samples per optimizer step."""

import math
import re
from typing import Any

from shoal.translate.roll.worker_fields import SPLITS, STRATEGY, STRATEGY_NAME, TRAINING
from shoal.translate.shared.draft import Draft, Source

_DEVICES = "actor_train.device_mapping"
_TRAINERS = ("deepspeed_train", "megatron_train", "fsdp2_train")


def _ranks(mapping: Any) -> int | None:
    """Returns the number of devices in "list(range(0,16))", a sum of these, "[0,1]" or a list; None for no devices."""
    if ranges := re.findall(r"range\(\s*(?:(\d+)\s*,\s*)?(\d+)\s*\)", str(mapping)):
        return sum(int(end) - int(start or 0) for start, end in ranges)
    return len(re.findall(r"\d+", str(mapping))) or None


def _sharding(source: Source, draft: Draft) -> None:
    """Reads the name of one of ROLL's DeepSpeed files. Other rows handle a table in its place."""
    config = source[STRATEGY]
    match = re.fullmatch(r"\$\{deepspeed_zero([123]?)(_cpuoffload)?\}", config) if isinstance(config, str) else None
    if match is not None:
        draft.set("learner.zero_stage", int(match[1] or 0), source.origin(STRATEGY))
        if match[2]:
            draft.set("learner.offload_optimizer", True, source.origin(STRATEGY))
            draft.set("learner.offload_parameters", match[1] == "3", source.origin(STRATEGY))
    elif config:
        draft.notes.append(f"{STRATEGY} = {config}: learner.zero_stage decides how the learner's ranks share the model")


def compose_batches(source: Source, draft: Draft) -> None:
    """Sets learner ranks and mini-batches."""
    ranks = _ranks(source[_DEVICES])
    name = source[STRATEGY_NAME]
    if name is not None and name not in _TRAINERS:
        reason = f"Shoal supports only {', '.join(_TRAINERS)}, which train language models"
        draft.refuse(STRATEGY_NAME, name, reason, cure="learner.zero_stage")
    else:
        why = "the learner uses DeepSpeed; learner.zero_stage decides how its ranks share the model"
        source.note_unused(STRATEGY_NAME, why=why)
    _sharding(source, draft)
    # Ranks that share a model, or a row, process the same samples.
    shared = math.prod(max(1, source[split] or 1) for split in SPLITS)
    per_step = _mini_batches(source, draft, max(1, (ranks or 1) // shared))
    if ranks:
        most = min(ranks, per_step)
        draft.set("launch.num_learner_ranks", most, source.origin(_DEVICES))
        if most < ranks:
            draft.notes.append(
                f"device_mapping names {ranks} devices, but an optimizer step has {per_step} completions; each rank of "
                f"the learner needs a completion, so launch.num_learner_ranks is {most}"
            )


def _mini_batches(source: Source, draft: Draft, replicas: int) -> int:
    """Sets the mini-batches of a step; returns the number of samples in each mini-batch."""
    names = (f"{TRAINING}.per_device_train_batch_size", f"{TRAINING}.gradient_accumulation_steps")
    device, accumulation = (source[name] for name in names)
    samples = int(source["rollout_batch_size"] * source["num_return_sequences_in_group"])
    if not any(source.is_set(item) for item in names):
        draft.notes.append("a train step has one optimizer step, since actor_train.training_args sets no batch size")
        return samples
    per_step = int(device * accumulation * replicas)
    if 0 < per_step <= samples and samples % per_step == 0:
        splits = [name for name in SPLITS if source.is_set(name)]
        draft.set("grpo.num_mini_batches", samples // per_step, source.origin(*names, _DEVICES, *splits))
        return per_step
    reason = f"the {samples} samples of a train step must be a multiple of the {per_step} of an optimizer step"
    draft.refuse(names[1], accumulation, reason, cure="grpo.num_mini_batches")
    return samples
