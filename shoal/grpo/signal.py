"""Groups whose rewards are all equal teach nothing that compares within a group; what kind of nothing they were."""

import math
from collections.abc import Sequence
from typing import Literal

ZeroSignal = Literal["zero", "solved", "nonzero"]


def zero_signal_kind(rewards: Sequence[float], max_reward: float) -> ZeroSignal | None:
    """What the common reward of a group was: none at all, the most that there is, or something else.

    None when rewards differ, or when there is none.
    """
    if len(set(rewards)) != 1:
        return None
    if rewards[0] == 0:
        return "zero"
    return "solved" if rewards[0] == max_reward else "nonzero"


def solved_share(rewards: Sequence[float], max_reward: float) -> float:
    """The mean reward of a group as a share of the most that there is; 0 where nothing can be earned."""
    return math.fsum(rewards) / len(rewards) / max_reward if rewards and max_reward else 0.0
