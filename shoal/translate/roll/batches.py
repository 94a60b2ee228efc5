"""ROLL's ranks, and the number of samples per optimizer step."""

import math
import re

from shoal.translate.roll.worker_fields import SPLITS
from shoal.translate.shared.draft import Draft, Source

TRAINING = "actor_train.training_args"
_STRATEGY = "actor_train.strategy_args.strategy_config"


def _ranks(mapping: str | None) -> int | None:
    """Returns the number of devices in "list(range(0,16))" or "[0,1]"; None for other forms."""
    if mapping is None:
        return None
    if match := re.fullmatch(r"list\(range\((\d+),\s*(\d+)\)\)", mapping.strip()):
        return int(match[2]) - int(match[1])
    numbers = re.findall(r"\d+", mapping)
    return len(numbers) or None


def _sharding(source: Source, draft: Draft) -> None:
    """Reads the name of one of ROLL's DeepSpeed files; a table in its place has rows of its own."""
    config = source[_STRATEGY]
    match = re.fullmatch(r"\$\{deepspeed_zero([123]?)(_cpuoffload)?\}", config) if isinstance(config, str) else None
    if match is not None:
        draft.set("learner.zero_stage", int(match[1] or 0), source.origin(_STRATEGY))
        if match[2]:
            draft.set("learner.offload_optimizer", True, source.origin(_STRATEGY))
            draft.set("learner.offload_parameters", match[1] == "3", source.origin(_STRATEGY))
    elif config:
        draft.refuse(_STRATEGY, config, "known: ROLL's own deepspeed_zero files", cure="learner.zero_stage")


def compose_batches(source: Source, draft: Draft) -> None:
    """Sets learner ranks and mini-batches."""
    ranks = _ranks(source["actor_train.device_mapping"])
    name = source["actor_train.strategy_args.strategy_name"]
    if ranks:
        draft.set("launch.num_learner_ranks", ranks, source.origin("actor_train.device_mapping"))
    if name in (None, "deepspeed_train", "megatron_train", "fsdp2_train"):
        if name in ("megatron_train", "fsdp2_train"):
            draft.notes.append(
                f"strategy_name = {name}: the learner uses DeepSpeed; learner.zero_stage decides how its "
                "ranks share the model"
            )
    else:
        draft.refuse(
            "actor_train.strategy_args.strategy_name", name, "the learner uses DeepSpeed", cure="learner.zero_stage"
        )
    _sharding(source, draft)
    splits = [source[f"{_STRATEGY}.{name}"] for name in SPLITS]
    device, accumulation = (
        source[f"{TRAINING}.per_device_train_batch_size"],
        source[f"{TRAINING}.gradient_accumulation_steps"],
    )
    names = (f"{TRAINING}.per_device_train_batch_size", f"{TRAINING}.gradient_accumulation_steps")
    if not any(source.is_set(item) for item in names):
        draft.notes.append("one optimizer step per train step: actor_train.training_args set no batch size")
        return
    samples = source["rollout_batch_size"] * source["num_return_sequences_in_group"]
    # Ranks that share a model, or a row, process the same samples.
    shared = math.prod(max(1, split or 1) for split in splits)
    per_step = device * accumulation * max(1, (ranks or 1) // shared)
    if per_step < 1 or samples % per_step:
        draft.refuse(
            names[1],
            accumulation,
            f"the {samples} samples of a step must be divisible by those of an optimizer step ({per_step})",
            cure="grpo.num_mini_batches",
        )
        return
    draft.set("grpo.num_mini_batches", samples // per_step, source.origin(*names))
