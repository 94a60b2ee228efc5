"""The values of a configuration that `shoal config check` shows, computed from its fields and properties."""

from dataclasses import dataclass

from shoal.config.run import RunConfig

_PROMPT_TOKEN_BYTES = 4
"""The id, an int32."""
_TOKEN_BYTES = 4 + 4 + 4 + 1
"""Of a completion's token: its id, log-probability and advantage, and its loss mask."""
_HEADER_BYTES = 2048
"""For everything in a message that does not grow with its tokens: names, version spans, trace context."""
_HEADROOM = 2


@dataclass(frozen=True)
class DerivedValues:
    """Values that follow from a configuration, in the terms of docs/glossary.md."""

    run_name: str
    """Prefix of the run id; the start time follows."""
    world_size: int
    """Learner ranks."""
    data_parallel_size: int
    """Learner ranks that process different rows: the ranks divided by those that share each row."""
    num_generator_gpus: int
    """GPUs that all generators use, if there are GPUs."""
    completions_per_step: int
    """Completions of one train step: groups_per_step x group_size. open-instruct's effective batch size."""
    completions_per_optimizer_step: int
    """Completions of one optimizer step, before groups without signal are left out."""
    optimizer_steps_per_step: int
    """Optimizer steps of one train step: num_epochs x num_mini_batches."""
    accumulation_steps: float
    """Completions that each rank accumulates in one optimizer step, on average: the accumulation steps of a trainer
    that processes one completion at a time. Packing needs fewer forward passes."""
    train_steps: int
    """Train steps of the run."""
    optimizer_steps: int
    """Optimizer steps of the run, when none is skipped."""
    total_episodes: int
    """Completions of all train steps."""
    warmup_steps: int
    """Optimizer steps during which the learning rate rises."""
    max_sequence_tokens: int
    """Longest prompt plus completion."""
    max_model_len: int
    """Context length of the engine."""
    max_groups_in_flight: int
    """Groups between their issue and the publish of the weights trained on them: (max_staleness + 1) x
    groups_per_step."""
    max_step_bytes: int
    """Most that the learner accepts as one train step: twice what its groups take in messages, at full length."""
    loads_reference: bool
    """Whether the learner loads a reference model."""


def derived_values(config: RunConfig) -> DerivedValues:
    """Computes everything that follows from a configuration."""
    grpo, learner = config.grpo, config.learner
    completions = grpo.groups_per_step * grpo.group_size
    per_optimizer_step = completions // grpo.num_mini_batches
    data_parallel = config.launch.num_learner_ranks // learner.sequence_parallel_size
    generator = config.generator
    engine_gpus = generator.tensor_parallel_size * generator.pipeline_parallel_size
    return DerivedValues(
        run_name=config.run.name,
        world_size=config.launch.num_learner_ranks,
        data_parallel_size=data_parallel,
        num_generator_gpus=config.launch.num_generators * engine_gpus,
        completions_per_step=completions,
        completions_per_optimizer_step=per_optimizer_step,
        optimizer_steps_per_step=grpo.num_epochs * grpo.num_mini_batches,
        accumulation_steps=per_optimizer_step / data_parallel,
        train_steps=config.run.num_steps,
        optimizer_steps=config.num_optimizer_steps,
        total_episodes=config.run.num_steps * completions,
        warmup_steps=config.num_warmup_steps,
        max_sequence_tokens=config.max_sequence_tokens,
        max_model_len=config.max_model_len,
        max_groups_in_flight=(grpo.max_staleness + 1) * grpo.groups_per_step,
        max_step_bytes=_HEADROOM * _step_bytes(config),
        loads_reference=config.loads_reference,
    )


def _step_bytes(config: RunConfig) -> int:
    """Returns the size of the messages of the largest train step."""
    grpo, sampling = config.grpo, config.sampling
    completion = sampling.max_completion_tokens * (_TOKEN_BYTES + _support_bytes(sampling.top_k))
    num_completions = grpo.groups_per_step * grpo.group_size
    num_messages = 1 + grpo.groups_per_step + num_completions
    prompts = grpo.groups_per_step * config.data.max_prompt_tokens * _PROMPT_TOKEN_BYTES
    return num_messages * _HEADER_BYTES + prompts + num_completions * completion


def _support_bytes(top_k: int) -> int:
    """Returns what the support of a token takes: its count, and the ids of up to `top_k` tokens and its own."""
    return 4 + 4 * (top_k + 1) if top_k else 0
