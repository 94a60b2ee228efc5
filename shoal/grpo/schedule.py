"""The learning rate as a function of the optimizer steps taken. The schedules are those of `transformers`."""

import math
from collections.abc import Callable

from shoal.config.run import RunConfig
from shoal.config.tables.learner import LearnerConfig

_TIMESCALE = 10_000
"""The timescale of inverse_sqrt without a warm-up, in optimizer steps."""


def learning_rate(config: RunConfig, num_steps_taken: int) -> float:
    """Returns the rate of the next optimizer step, after `num_steps_taken` applied steps; refused steps do not count.

    The value equals that of `transformers.get_scheduler` for this step: `learner.learning_rate` x `schedule_factor`.
    """
    settings = config.learner
    return settings.learning_rate * schedule_factor(
        settings,
        num_steps_taken,
        num_warmup_steps=config.num_warmup_steps,
        num_total_steps=config.num_optimizer_steps,
    )


def schedule_factor(
    settings: LearnerConfig, num_steps_taken: int, *, num_warmup_steps: int, num_total_steps: int
) -> float:
    """Returns the factor of the peak learning rate at an optimizer step, from 0 to 1. The first step has number 0.

    Every scheduler but "constant" rises over `num_warmup_steps`, linearly unless `lr_warmup_shape` is set. After the
    last step of the run the rate of a cosine would rise again, as in transformers; no run reaches those steps.
    """
    if settings.lr_scheduler == "constant":
        return 1.0
    floor = settings.lr_min_ratio or 0.0
    if settings.lr_scheduler == "cosine_warmup_with_min_lr":
        return _cosine_one_ahead(settings, num_steps_taken, num_warmup_steps, num_total_steps)
    if num_steps_taken < num_warmup_steps:
        risen = _rise(settings.lr_warmup_shape, num_steps_taken / num_warmup_steps)
        return floor + (1 - floor) * risen if settings.lr_scheduler == "warmup_stable_decay" else risen
    return _SCHEDULES[settings.lr_scheduler](settings, num_steps_taken, num_warmup_steps, num_total_steps)


def _rise(shape: str, progress: float) -> float:
    if shape == "cosine":
        return 0.5 * (1 - math.cos(math.pi * progress))
    return 1 - math.sqrt(1 - progress) if shape == "1-sqrt" else progress


def _linear(settings: LearnerConfig, step: int, num_warmup: int, num_total: int) -> float:
    return max(0.0, 1 - _progress(step, num_warmup, num_total))


def _cosine(settings: LearnerConfig, step: int, num_warmup: int, num_total: int) -> float:
    floor = settings.lr_min_ratio or 0.0
    return floor + (1 - floor) * _wave(settings, _progress(step, num_warmup, num_total))


def _cosine_one_ahead(settings: LearnerConfig, step: int, num_warmup: int, num_total: int) -> float:
    """Counts the current step as taken. So the rate of the first step is above 0, the last step of the warm-up has the
    peak rate, and the last step of the run has the lowest rate."""
    if step >= num_warmup:
        return max(0.0, _cosine(settings, step + 1, num_warmup, num_total))
    first = settings.lr_warmup_start_ratio
    return (step + 1) / num_warmup if first is None else first + (1 - first) * step / max(1, num_warmup - 1)


def _cosine_with_restarts(settings: LearnerConfig, step: int, num_warmup: int, num_total: int) -> float:
    progress = _progress(step, num_warmup, num_total)
    fall = (settings.lr_num_cycles or 1) * progress % 1.0
    return 0.5 * (1 + math.cos(math.pi * fall)) if progress < 1 else 0.0


def _polynomial(settings: LearnerConfig, step: int, num_warmup: int, num_total: int) -> float:
    floor = settings.lr_min_ratio or 0.0
    remaining = max(0.0, 1 - _progress(step, num_warmup, num_total))
    return floor + (1 - floor) * math.pow(remaining, settings.lr_power)


def _inverse_sqrt(settings: LearnerConfig, step: int, num_warmup: int, num_total: int) -> float:
    timescale = settings.lr_timescale or num_warmup or _TIMESCALE
    return math.sqrt(timescale / (step - num_warmup + timescale))


def _warmup_stable_decay(settings: LearnerConfig, step: int, num_warmup: int, num_total: int) -> float:
    num_decay = settings.lr_decay_steps or 1
    decay_begins = num_total - num_decay
    if step < decay_begins:
        return 1.0
    progress = (step - decay_begins) / num_decay
    floor = settings.lr_min_ratio or 0.0
    if progress >= 1:
        return floor
    if settings.lr_decay_shape == "cosine":
        return floor + (1 - floor) * _wave(settings, progress)
    return floor + (1 - floor) * (1 - (math.sqrt(progress) if settings.lr_decay_shape == "1-sqrt" else progress))


def _progress(step: int, num_warmup: int, num_total: int) -> float:
    """Returns the progress of the run: 0 at the end of the warm-up, 1 after the last step."""
    return (step - num_warmup) / max(1, num_total - num_warmup)


def _wave(settings: LearnerConfig, progress: float) -> float:
    return 0.5 * (1 + math.cos(2 * math.pi * (settings.lr_num_cycles or 0.5) * progress))


_SCHEDULES: dict[str, Callable[[LearnerConfig, int, int, int], float]] = {
    "constant_with_warmup": lambda settings, step, num_warmup, num_total: 1.0,
    "linear": _linear,
    "cosine": _cosine,
    "cosine_with_min_lr": _cosine,
    "cosine_with_restarts": _cosine_with_restarts,
    "polynomial": _polynomial,
    "inverse_sqrt": _inverse_sqrt,
    "warmup_stable_decay": _warmup_stable_decay,
}
