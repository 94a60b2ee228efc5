"""The learning rate, as a function of the optimizer steps taken."""

import math

from shoal.config import RunConfig


def learning_rate(config: RunConfig, num_steps_taken: int) -> float:
    """The rate of the next optimizer step.

    It rises linearly from 0 over the warm-up, and then stays, or falls to 0 along a line or half a cosine by the
    last optimizer step of the run. As `transformers.get_scheduler` has it.
    """
    settings, grpo = config.learner, config.grpo
    num_total = config.run.num_steps * grpo.num_epochs * grpo.num_mini_batches
    if num_steps_taken < settings.warmup_steps:
        return settings.learning_rate * num_steps_taken / settings.warmup_steps
    if settings.lr_scheduler == "constant":
        return settings.learning_rate
    progress = (num_steps_taken - settings.warmup_steps) / max(1, num_total - settings.warmup_steps)
    progress = min(1.0, progress)
    if settings.lr_scheduler == "linear":
        return settings.learning_rate * (1 - progress)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
