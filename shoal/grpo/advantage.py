"""Group-relative advantages."""

import math
from collections.abc import Sequence
from typing import Literal


def group_advantages(
    rewards: Sequence[float | None], *, scale: Literal["std", "none"], std_ddof: int, std_eps: float
) -> list[float | None]:
    """Compares each completion of a group with its siblings.

    `(r - mean) / (std + eps)` with scale "std" (GRPO, arXiv:2402.03300), `r - mean` with "none" (Dr. GRPO,
    arXiv:2503.20783). `std_ddof` is subtracted from the count in the variance.

    None stands for a completion without a reward (its verifier failed, or it cannot be judged): it takes no part
    in the statistics and gets None back. A single reward, and equal rewards, give exactly 0: in floating point
    the mean of equal numbers need not equal them, which the division would blow up.

    Example: `group_advantages([1, 0, 0, None], scale="none", std_ddof=1, std_eps=0)` is
    `[2/3, -1/3, -1/3, None]`.
    """
    scored = [reward for reward in rewards if reward is not None]
    if len(set(scored)) <= 1:
        return [None if reward is None else 0.0 for reward in rewards]
    mean = math.fsum(scored) / len(scored)
    divisor = 1.0
    if scale == "std":
        variance = math.fsum((reward - mean) ** 2 for reward in scored) / (len(scored) - std_ddof)
        divisor = math.sqrt(variance) + std_eps
    return [None if reward is None else (reward - mean) / divisor for reward in rewards]


def has_signal(advantages: Sequence[float | None]) -> bool:
    """Whether training on the group would change anything."""
    return any(advantages)
