"""The choice of the models and checkpoints of a run that are kept."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def best_of(steps: Sequence[int], values: Mapping[int, float], *, is_lowest: bool) -> int | None:
    """Returns the step with the best value, the earliest of equals; None if no step has a finite value."""
    measured = [step for step in steps if math.isfinite(values.get(step, math.nan))]
    sign = 1 if is_lowest else -1
    return min(measured, key=lambda step: (sign * values[step], step), default=None)


def kept_of(written: Sequence[T], keep_last: int, others: Collection[T | None] = ()) -> list[T]:
    """Returns the items of `written` to keep, in order: the last `keep_last` (all if 0), and those in `others`."""
    last = written[-keep_last:]
    return [each for each in written if each in last or each in others]
