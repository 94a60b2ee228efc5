"""Learning rate schedules by the names of `transformers.SchedulerType`, which other systems pass on."""

from collections.abc import Mapping
from typing import Any, get_args

from shoal.config.tables.learner import Scheduler
from shoal.translate.shared.draft import Draft, Origin

REFUSED = {
    "reduce_lr_on_plateau": "it waits for a loss on held-out text, and reinforcement learning has none",
    "greedy": "it follows a loss that should fall, and a policy's loss does not show its reward",
}
"""Schedulers that Shoal does not have, with the reason."""
_END = 1e-7
"""Final learning rate of transformers' polynomial schedule, by default."""
_RATES = {"min_lr": "lr_min_ratio", "lr_end": "lr_min_ratio"}
"""Options that are learning rates. Shoal's are shares of the peak."""
_COPIED = {
    "min_lr_rate": "lr_min_ratio",
    "min_lr_ratio": "lr_min_ratio",
    "num_cycles": "lr_num_cycles",
    "power": "lr_power",
    "timescale": "lr_timescale",
    "num_decay_steps": "lr_decay_steps",
    "warmup_type": "lr_warmup_shape",
    "decay_type": "lr_decay_shape",
    "warmup_lr_rate": "lr_warmup_start_ratio",
}
OPTIONS = (*_RATES, *_COPIED)
"""Names of options in transformers' `scheduler_specific_kwargs`."""


def set_scheduler(
    draft: Draft,
    name: str,
    origin: Origin,
    *,
    field: str,
    learning_rate: float,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Sets `learner.lr_scheduler` and its options, including transformers' final rate of the polynomial schedule.

    Refuses `field` if Shoal has no such schedule, or no such option.
    """
    known = get_args(Scheduler)
    if name not in known:
        reason = REFUSED.get(name, "transformers has no such scheduler")
        draft.refuse(field, name, f"{reason}; known are {', '.join(known)}", cure="learner.lr_scheduler")
        return
    draft.set("learner.lr_scheduler", name, origin)
    settings = ({"lr_end": _END} if name == "polynomial" else {}) | dict(options or {})
    for option, value in settings.items():
        ours = _RATES.get(option) or _COPIED.get(option)
        if ours is None:
            draft.refuse(field, option, f"this option of {name} has no counterpart; known are {', '.join(OPTIONS)}")
        elif option not in _RATES:
            draft.set(f"learner.{ours}", value, origin)
        elif isinstance(value, int | float) and value < learning_rate:
            draft.set(f"learner.{ours}", value / learning_rate, origin)
        else:
            draft.refuse(field, value, f"{option} must be a rate below the peak ({learning_rate:g})")
