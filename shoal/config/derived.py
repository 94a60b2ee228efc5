"""The values that `shoal config show` prints after a configuration, and the size of its largest train step."""

from typing import Any

from shoal.config.run import RunConfig

_PROMPT_TOKEN_BYTES = 4
"""Bytes of a token id, an int32."""
_TOKEN_BYTES = 4 + 4 + 4 + 1
"""Bytes of each token of a completion: its id, log-probability, advantage and loss mask."""
_HEADER_BYTES = 2048
"""Bytes of a message that do not depend on its number of tokens: names, version spans, trace context."""
_HEADROOM = 2


def derived_values(config: RunConfig) -> dict[str, Any]:
    """Returns the values that follow from a configuration, in the terms of docs/glossary.md."""
    grpo, generator = config.grpo, config.generator
    per_optimizer_step = grpo.completions_per_step // grpo.num_mini_batches
    engine_gpus = generator.tensor_parallel_size * generator.pipeline_parallel_size
    return {
        "run_name": config.run.name,
        "world_size": config.launch.num_learner_ranks,
        "data_parallel_size": config.data_parallel_size,
        "num_generator_gpus": config.launch.num_generators * engine_gpus,
        "completions_per_step": grpo.completions_per_step,
        "completions_per_optimizer_step": per_optimizer_step,
        "optimizer_steps_per_step": grpo.optimizer_steps_per_step,
        # Those of a trainer that processes one completion at a time. Packing needs fewer forward passes.
        "accumulation_steps": per_optimizer_step / config.data_parallel_size,
        "train_steps": config.run.num_steps,
        "optimizer_steps": config.num_optimizer_steps,
        "total_episodes": config.run.num_steps * grpo.completions_per_step,
        "warmup_steps": config.num_warmup_steps,
        "max_sequence_tokens": config.max_sequence_tokens,
        "max_model_len": config.max_model_len,
        "max_groups_in_flight": grpo.max_groups_in_flight,
        "max_step_bytes": max_step_bytes(config),
        "loads_reference": config.loads_reference,
    }


def max_step_bytes(config: RunConfig) -> int:
    """Returns the most bytes of a train step that the learner accepts: twice the size of its groups at full length."""
    grpo, sampling = config.grpo, config.sampling
    completion = sampling.max_completion_tokens * (_TOKEN_BYTES + _support_bytes(sampling.top_k))
    num_messages = 1 + grpo.groups_per_step + grpo.completions_per_step
    prompts = grpo.groups_per_step * config.data.max_prompt_tokens * _PROMPT_TOKEN_BYTES
    return _HEADROOM * (num_messages * _HEADER_BYTES + prompts + grpo.completions_per_step * completion)


def _support_bytes(top_k: int) -> int:
    """Returns the bytes of a token's support: the count, and the ids of up to `top_k` tokens and the sampled token."""
    return 4 + 4 * (top_k + 1) if top_k else 0
