"""TRL's sizes: groups and mini-batches, ranks, steps, checkpoints, and the lengths of prompts and completions."""

import math

from shoal.config.tables.data import DataConfig
from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.setters import set_context

_COUNTS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_generations",
    "num_iterations",
    "num_processes",
)
_MOST_PROCESSES = 1024
_MOST_TOKENS = int(DataConfig.model_fields["max_prompt_tokens"].default)


def compose_batches(source: Source, draft: Draft) -> int:
    """Sets the sizes of a train step. Returns the number of TRL's optimizer steps in a train step.

    TRL counts per process. If the source sets no number of processes, the smallest fitting one is used, usually 1.
    """
    for name in _COUNTS:
        if source[name] < 1:
            draft.refuse(name, source[name], "must be at least 1")
    device, accumulation, generations, epochs, processes = (max(1, source[name]) for name in _COUNTS)
    if source["generation_batch_size"] and source["steps_per_generation"]:
        reason = "give this or generation_batch_size, not both, as TRL also requires"
        draft.refuse("steps_per_generation", source["steps_per_generation"], reason)
    if not source.is_set("num_processes"):
        processes = _fitting_processes(source, device, accumulation, generations)
    device *= processes
    batch, names = _generation_batch(source, device, device * accumulation)
    if source.is_set("num_processes"):
        draft.set("launch.num_learner_ranks", processes, source.origin("num_processes"))
    else:
        why = "the smallest number that gives whole groups" if processes > 1 else "TRL's number without a launcher"
        draft.notes.append(
            f"a generation batch has {batch} completions for num_processes {processes} ({why}); for another number end "
            "the command with -- --num_processes N, or set grpo.groups_per_step and launch.num_learner_ranks"
        )
    if batch % generations:
        reason = f"the completions generated together ({batch}) must be divisible by num_generations ({generations})"
        draft.refuse(names[0], batch, reason, cure="grpo.groups_per_step")
    groups = max(1, batch // generations)
    mini_batches = max(1, batch // (device * accumulation))
    if groups % mini_batches:
        reason = (
            f"an optimizer step takes {device * accumulation} completions, but mini-batches must be whole groups of "
            f"{generations}: raise gradient_accumulation_steps"
        )
        draft.refuse("per_device_train_batch_size", device, reason, cure="grpo.num_mini_batches")
        mini_batches = 1
    origin = source.origin(*names, "num_generations")
    draft.set("grpo.groups_per_step", groups, origin)
    steps = [name for name in ("gradient_accumulation_steps",) if name not in names and source.is_set(name)]
    draft.set("grpo.num_mini_batches", mini_batches, source.origin(*names, *steps, "num_generations"))
    _set_steps(source, draft, optimizer_steps=epochs * mini_batches)
    # TRL does not train while it generates: every completion comes from the current policy.
    draft.set("grpo.max_staleness", 0, origin)
    return int(epochs * mini_batches)


def _fitting_processes(source: Source, device: int, accumulation: int, generations: int) -> int:
    """Returns the smallest number of processes for which a generation batch has whole groups, or else 1."""
    for processes in range(1, _MOST_PROCESSES + 1):
        batch, _ = _generation_batch(source, device * processes, device * processes * accumulation)
        if batch % generations == 0:
            return processes
    return 1


def _generation_batch(source: Source, device: int, optimizer_batch: int) -> tuple[int, tuple[str, ...]]:
    """Returns the number of completions that are generated together, and the names of the fields that decide it.

    `device` counts the completions of one forward pass on all devices, `optimizer_batch` those of an optimizer step.
    """
    given, steps = source["generation_batch_size"], source["steps_per_generation"]
    batch = given or (device * steps if steps else optimizer_batch)
    if batch < optimizer_batch:
        # An optimizer step takes several generation batches, all of one policy.
        return optimizer_batch, ("per_device_train_batch_size", "gradient_accumulation_steps")
    if given:
        return batch, ("generation_batch_size",)
    return batch, ("per_device_train_batch_size", "steps_per_generation" if steps else "gradient_accumulation_steps")


def _set_steps(source: Source, draft: Draft, *, optimizer_steps: int) -> None:
    """Sets the number of train steps and the checkpoint interval. TRL counts steps and interval in optimizer steps."""
    if source["max_steps"] > 0:
        draft.set("run.num_steps", math.ceil(source["max_steps"] / optimizer_steps), source.origin("max_steps"))
    else:
        source.copy("num_train_epochs", "run.total_epochs")
    saves = source["save_steps"]
    if saves < 1 and source["max_steps"] > 0:
        saves = math.ceil(saves * source["max_steps"])
    if saves < 1:
        draft.notes.append(f"save_steps = {saves:g} is a share of an unknown length: checkpoints come every 50 steps")
    every = max(1, int(saves) // optimizer_steps) if saves >= 1 else 50
    draft.set("checkpoint.every_steps", every, source.origin("save_steps"))


def compose_lengths(source: Source, draft: Draft) -> None:
    """Sets the length of prompts if TRL has no limit, and the context if prompts and completions fit into it."""
    given, context = source["max_prompt_length"], source["vllm_max_model_length"]
    if given is not None:
        draft.notes.append(
            f"max_prompt_length = {given}: prompts that are longer are left out; TRL before 1.0 cut off their beginning"
        )
    elif context is not None:
        prompt = max(1, min(_MOST_TOKENS, context - source["max_completion_length"]))
        draft.set("data.max_prompt_tokens", prompt, source.origin("vllm_max_model_length", "max_completion_length"))
    else:
        draft.notes.append(
            f"max_prompt_length: TRL takes prompts of any length; Shoal leaves out prompts of more than {_MOST_TOKENS} "
            "tokens, unless data.max_prompt_tokens is set"
        )
    if context is not None:
        compose_context(source, draft, "vllm_max_model_length")


def compose_context(source: Source, draft: Draft, name: str) -> None:
    """Sets the engine's context from a field. The draft must already have the lengths of prompts and completions."""
    prompt = draft.values["data.max_prompt_tokens"] or _MOST_TOKENS
    completion = draft.values["sampling.max_completion_tokens"]
    set_context(source, draft, name, prompt + completion, f"{prompt} + {completion} tokens")
