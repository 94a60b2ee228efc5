"""Groups without a signal. All rewards of such a group are equal, so a comparison within the group teaches nothing."""

import math
from collections.abc import Sequence
from typing import Literal

ZeroSignal = Literal["zero", "solved", "nonzero"]


def zero_signal_kind(rewards: Sequence[float], max_reward: float) -> ZeroSignal | None:
    """Classifies the common reward of a group: 0, the maximum ("solved"), or any other value ("nonzero").

    Returns None if the rewards differ, or if there are no rewards.
    """
    if len(set(rewards)) != 1:
        return None
    if rewards[0] == 0:
        return "zero"
    return "solved" if rewards[0] == max_reward else "nonzero"


def solved_share(rewards: Sequence[float], max_reward: float) -> float:
    """Returns the mean reward of a group as a share of the maximum; 0 without rewards, or if the maximum is 0."""
    return math.fsum(rewards) / len(rewards) / max_reward if rewards and max_reward else 0.0
