"""Suggests a configuration for a task, a model and a GPU size, with the reason for each choice."""

import textwrap
from dataclasses import dataclass
from typing import Any

from shoal.config.load import parse_config
from shoal.config.run import RunConfig
from shoal.config.tables.learner import LearnerConfig
from shoal.errors import InvalidArgument
from shoal.suggest.cost import H100, Rates, StepTime, step_time
from shoal.suggest.memory import FREE_SHARE, GIB, RUNTIME_BYTES, Memory, generator_memory, learner_memory
from shoal.suggest.rows import fit_rows
from shoal.suggest.shape import ModelShape, model_shape
from shoal.suggest.tasks import SMALL_GPU_GB, TASKS, Task
from shoal.translate.shared.draft import Draft, Origin
from shoal.translate.shared.toml import to_toml

_GROUPS = 8
_PROMPT_TOKENS = 512
_RANKS = (2, 4, 8, 16, 32, 64)
_ADAPTERS: dict[str, Any] = {"learner.lora.rank": 16, "learner.lora.alpha": 32, "learner.learning_rate": 5e-5}
"""Learning rate of adapters. AdamW moves a weight by about the learning rate in a step: 250 steps at 5e-5 add up to
0.0125. The 20 steps of configs/quickstart-lora.toml, from 1e-3 down to 0, add up to 0.0105."""


@dataclass(frozen=True)
class Suggestion:
    """A configuration, with its expected memory and step time."""

    config: RunConfig
    toml: str
    learner: Memory
    generator: Memory
    step: StepTime


def suggest(task: str, gpu_memory_gb: float, model: str, rates: Rates = H100) -> Suggestion:
    """Chooses a configuration, and estimates the time of a step at these rates.

    Starts from the task's values. Below 24 GB the group is halved and the number of groups is doubled, so that a step
    still has the same number of completions. Then the least sharding that fits is chosen. The search tries first all
    services on one GPU, then one learner rank. Below 24 GB it also tries adapters on a frozen model, finally in 4 bits.
    The last choice is the fewest ZeRO 3 learner ranks. Generators get as much tensor parallelism as the weights need.

    Raises `InvalidArgument` for an unknown task, a model of unknown size, and a model that does not fit.
    """
    if task not in TASKS:
        raise InvalidArgument(f"--task {task!r} is unknown; the known tasks are {', '.join(TASKS)}")
    if not gpu_memory_gb > 0:
        raise InvalidArgument(f"--gpu-memory-gb {gpu_memory_gb:g} must be above 0")
    shape, chosen = model_shape(model), TASKS[task]
    budget = gpu_memory_gb * 1e9 * FREE_SHARE - RUNTIME_BYTES
    for placement in _placements(is_small=gpu_memory_gb <= SMALL_GPU_GB):
        draft = _draft(task, chosen, gpu_memory_gb, model, placement)
        config = parse_config(draft.nested())
        rows = fit_rows(config, shape, gpu_bytes=gpu_memory_gb * 1e9)
        generator = generator_memory(config, shape, num_sequences=config.grpo.group_size)
        if not rows.fits or generator.total > budget:
            continue
        learner = learner_memory(config.model_copy(update={"learner": rows.learner}), shape)
        if placement["launch.single_gpu"] and learner.between_steps + generator.total + RUNTIME_BYTES > budget:
            continue
        return _finish(draft, shape, gpu_memory_gb, rows.learner, rates)
    raise InvalidArgument(
        f"--model {model}: {shape.num_parameters / 1e9:.1f} billion parameters do not fit GPUs of "
        f"{gpu_memory_gb:g} GB, even with {_RANKS[-1]} learner ranks and generators of 8 GPUs; use larger GPUs or a "
        "smaller model"
    )


def _placements(*, is_small: bool) -> list[dict[str, Any]]:
    """Lists placements from the fewest to the most GPUs, and on one GPU from the whole model to the smallest form."""
    alone = {"launch.single_gpu": True, "launch.num_learner_ranks": 1}
    apart = {**alone, "launch.single_gpu": False}
    adapters = [_ADAPTERS, {**_ADAPTERS, "learner.lora.quantization": "nf4"}] if is_small else []
    placements: list[dict[str, Any]] = [
        {**place, **settings} for place in (alone, apart) for settings in ({}, *adapters)
    ]
    placements += [{**apart, "learner.zero_stage": 3, "launch.num_learner_ranks": ranks} for ranks in _RANKS]
    return [
        {**placement, **checkpointing, "generator.tensor_parallel_size": tensor}
        for placement in placements
        # If unset, the learner turns it on where it is needed, but only for models that it knows well.
        for checkpointing in ({}, {"learner.gradient_checkpointing": True})
        for tensor in ((1,) if placement["launch.single_gpu"] else (1, 2, 4, 8))
    ]


def _draft(task: str, chosen: Task, gpu_memory_gb: float, model: str, placement: dict[str, Any]) -> Draft:
    draft = Draft()

    def put(name: str, value: Any, reason: str) -> None:
        draft.set(name, value, Origin(reason, True))

    small = gpu_memory_gb < SMALL_GPU_GB
    halved = f"; halved below {SMALL_GPU_GB} GB, as the guide does" if small else ""
    put("run.name", task.replace("_", "-"), "the task")
    put("run.num_steps", 250, "enough to see a small model learn; raise it while the reward still rises")
    put("model.path", model, "from --model")
    put("data.sources", [{"dataset": chosen.dataset}], chosen.reasons["data.sources"] + "; replace it by your own")
    put("data.max_prompt_tokens", _PROMPT_TOKENS, "most questions in such data are shorter; longer ones are left out")
    name = "sampling.max_completion_tokens"
    put(name, chosen.max_completion_tokens, chosen.reasons[name])
    put("advantage.scale", "none", "the guide's advantage: the reward less the mean of its group")
    put("kl.coef", chosen.kl_coef, chosen.reasons["kl.coef"])
    put("learner.learning_rate", chosen.learning_rate, chosen.reasons["learner.learning_rate"])
    group = chosen.group_size // 2 if small else chosen.group_size
    put("grpo.group_size", group, chosen.reasons["grpo.group_size"] + halved)
    groups = _GROUPS * 2 if small else _GROUPS
    doubled = "twice as many, so that a step has as many completions in smaller groups" if small else "a usual start"
    put("grpo.groups_per_step", groups, doubled)
    shares = placement["launch.single_gpu"]
    reasons = {
        "launch.single_gpu": "generator and learner fit one GPU"
        if shares
        else "generator and learner need separate GPUs",
        "learner.zero_stage": "ranks share weights, gradients and optimizer, which do not fit one GPU",
        "launch.num_learner_ranks": "the fewest ranks whose memory suffices",
        "learner.gradient_checkpointing": "activations do not fit in addition to the rest, so they are computed twice",
        "learner.lora.rank": "the whole model and its optimizer do not fit this GPU: adapters are trained instead",
        "learner.lora.alpha": "twice the rank, as usual",
        "learner.lora.quantization": "the frozen model does not fit either, in 16 bits",
        "learner.learning_rate": "the upper end of the guide's range: adapters need some 10 times the rate of the "
        "whole model; a short run needs more (docs/adapters.md)",
        "generator.tensor_parallel_size": "the fewest GPUs with room for the engine's weights and the cache of one "
        "group",
    }
    for name, value in placement.items():
        put(name, value, reasons[name])
    if shares:
        put("grpo.max_staleness", 0, "on one GPU sampling and training take turns, so a higher value gains nothing")
        put("generator.sleep_while_training", True, "the learner needs the engine's memory while it trains")
        put("generator.gpu_memory_utilization", 0.5, "replaced below by the remaining memory")
    else:
        put("grpo.max_staleness", 1, "sampling continues while the learner trains")
    return draft


def _finish(draft: Draft, shape: ModelShape, gpu_memory_gb: float, settled: LearnerConfig, rates: Rates) -> Suggestion:
    """Gives the engine the remaining memory, and writes the configuration with its header.

    `settled` has the values that the learner chooses for fields that the draft leaves unset.
    """
    config = parse_config(draft.nested())
    whole = gpu_memory_gb * 1e9
    learner = learner_memory(config.model_copy(update={"learner": settled}), shape)
    if config.launch.single_gpu:
        left = whole * FREE_SHARE - RUNTIME_BYTES - learner.between_steps
        share = min(0.85, max(0.05, int(left / whole * 100) / 100))
        draft.set("generator.gpu_memory_utilization", share, Origin("what the learner leaves between steps", True))
    free = (draft.values.get("generator.gpu_memory_utilization", 0.9)) * whole
    one = generator_memory(config, shape, num_sequences=1)
    per_sequence = one.parts["key-value cache"]
    fitting = int((free - one.parts["weights"] - RUNTIME_BYTES) / per_sequence) if per_sequence else 1
    wanted = config.grpo.completions_per_step
    at_once = max(config.grpo.group_size, min(wanted, fitting))
    reason = (
        "all completions of a step at once" if at_once == wanted else "completions of full length that fit the cache"
    )
    draft.set("generator.max_num_seqs", at_once, Origin(reason, True))
    config = parse_config(draft.nested())
    generator = generator_memory(config, shape)
    step = step_time(config.model_copy(update={"learner": settled}), shape, rates)
    recomputed = "recomputed" if settled.gradient_checkpointing else "kept"
    header = [
        f"Suggested for {config.run.name} with {config.model.path} on GPUs of {gpu_memory_gb:g} GB by",
        "`shoal config suggest`. It starts from the values of Unsloth's guide to GRPO.",
        "",
        f"{shape.num_parameters / 1e6:,.0f} million parameters. Expected memory, without "
        f"{RUNTIME_BYTES / GIB:g} GiB per process",
        "for the runtime and without fragmentation (docs/sizing.md compares it with real runs):",
        *(_memory_line("learner rank", learner), _memory_line("generator GPU", generator)),
        f"  the learner packs rows of {settled.pack_tokens:,} tokens on such a GPU; activations are {recomputed}",
        "  reward, coordinator: no GPU, about 0.5 GiB of host memory each",
        "",
        f"Expected step: {step.synchronous_s:.1f} s sequentially = generate {step.generate_s:.1f} + reward "
        f"{step.reward_s:.2f} + update {step.update_s:.1f}"
        + (f" + other {step.other_s:.1f};" if step.other_s else ";"),
        f"{step.asynchronous_s:.1f} s overlapped. Completions of {rates.length_share:.0%} of the maximum length. "
        "Rates:",
        *(f"  {line}" for line in textwrap.wrap(rates.source, 109, break_long_words=False, break_on_hyphens=False)),
    ]
    return Suggestion(config, to_toml(draft, header), learner, generator, step)


def _memory_line(name: str, memory: Memory) -> str:
    parts = ", ".join(f"{part} {size / GIB:.2f}" for part, size in memory.parts.items() if size)
    return f"  {name}: {memory.total / GIB:.2f} GiB ({parts})"
