"""Which steps are kept of all whose model or checkpoint was written."""

import math
from collections.abc import Mapping, Sequence


def best_of(steps: Sequence[int], values: Mapping[int, float], *, is_lowest: bool) -> int | None:
    """Returns the step with the best value, the earliest of equals; None if no step has one that is finite."""
    measured = [step for step in steps if math.isfinite(values.get(step, math.nan))]
    sign = 1 if is_lowest else -1
    return min(measured, key=lambda step: (sign * values[step], step), default=None)


def kept_of(steps: Sequence[int], keep_last: int, best_step: int | None) -> list[int]:
    """Returns the steps that are kept: the last ones and the best; all of them if `keep_last` is 0."""
    last = steps[-keep_last:]
    return [step for step in steps if step in last or step == best_step]
