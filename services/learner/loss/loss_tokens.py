"""The values of some completion tokens that count in the loss, concatenated.

A rank collects these values for its own rows alone, row by row. Only a survey's values need the tokens of the whole
step on every rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.learner.loss.objectives.completions import Completions
from services.learner.model.contexts import Stretch, stretches_of
from shoal.rollout import TrainGroup


@dataclass(frozen=True)
class LossTokens:
    """N tokens. Every tensor is [N], on the CPU."""

    behavior_logprobs_N: Tensor
    """The behavior log-probabilities, float32; NaN if unknown."""
    advantages_N: Tensor
    """The advantages, float32."""
    rewards_N: Tensor
    """The reward of the token's completion, float32; NaN if the completion has no reward."""
    completions: Completions
    """The completions over which means are taken. An episode is one completion, also with several segments."""
    sequences: Completions
    """The sequences over which ratios and filters are computed: each has the tokens sampled in one context."""

    def __len__(self) -> int:
        return len(self.advantages_N)

    @classmethod
    def of(cls, stretches: Sequence[Stretch], num_completions: int) -> "LossTokens":
        """Collects the tokens of some stretches. `num_completions` counts the completions of all groups."""
        counts = [stretch.num_counted for stretch in stretches]

        def per_token(values: Sequence[float], dtype: type[np.generic]) -> Tensor:
            return torch.from_numpy(np.repeat(np.array(values, dtype=dtype), counts))

        def joined(arrays: list[np.ndarray[tuple[int], np.dtype[np.float32]]]) -> Tensor:
            return torch.from_numpy(np.concatenate(arrays) if arrays else np.zeros(0, np.float32))

        rewards = [stretch.rollout.reward for stretch in stretches]
        return cls(
            behavior_logprobs_N=joined([stretch.behavior_logprobs for stretch in stretches]),
            advantages_N=joined([stretch.advantages for stretch in stretches]),
            rewards_N=per_token([np.nan if reward is None else reward for reward in rewards], np.float32),
            completions=Completions(
                per_token([stretch.completion_index for stretch in stretches], np.int64), num_completions
            ),
            sequences=Completions(per_token(range(len(stretches)), np.int64), len(stretches)),
        )

    @classmethod
    def of_groups(cls, groups: Sequence[TrainGroup]) -> "LossTokens":
        """Collects all tokens of some groups."""
        return cls.of(stretches_of(groups), sum(len(group.rollouts) for group in groups))
