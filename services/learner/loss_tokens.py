"""The completion tokens of some groups that count in the loss, laid end to end in issue order.

Every rank has them all, so what needs a whole mini-batch or step (divisors, means, quantiles) is computed here, once
and alike on every rank; a packed row then picks its tokens by their places.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.learner.batch import loss_mask
from services.learner.completions import Completions
from shoal.rollout import Rollout, TrainGroup


@dataclass(frozen=True)
class LossTokens:
    """[N] each, on the CPU; N tokens of S completions."""

    behavior_logprobs_N: Tensor
    """float32; NaN where unknown."""
    advantages_N: Tensor
    """float32."""
    rewards_N: Tensor
    """float32, each token's completion's; NaN where not given."""
    weights_N: Tensor
    """float32, each token's completion's: a factor of its whole loss."""
    completions: Completions

    def __len__(self) -> int:
        return len(self.advantages_N)

    @classmethod
    def of(cls, groups: Sequence[TrainGroup]) -> "LossTokens":
        """Those of the groups."""
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        masks = [loss_mask(rollout) for rollout in rollouts]
        counts = np.array([int(mask.sum()) for mask in masks])

        def of_each(values: list[float]) -> Tensor:
            return torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), counts))

        behavior = [rollout.completion.behavior_logprobs[mask] for rollout, mask in zip(rollouts, masks, strict=True)]
        advantages = [_advantages(rollout)[mask] for rollout, mask in zip(rollouts, masks, strict=True)]
        return cls(
            behavior_logprobs_N=torch.from_numpy(np.concatenate(behavior)),
            advantages_N=torch.from_numpy(np.concatenate(advantages)),
            rewards_N=of_each([np.nan if rollout.reward is None else rollout.reward for rollout in rollouts]),
            weights_N=of_each([rollout.weight for rollout in rollouts]),
            completions=Completions(torch.from_numpy(np.repeat(np.arange(len(rollouts)), counts)), len(rollouts)),
        )


def _advantages(rollout: Rollout) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """[T], of all tokens."""
    if rollout.token_advantages is not None:
        return np.asarray(rollout.token_advantages, dtype=np.float32)
    return np.full(rollout.completion.num_tokens, rollout.advantage, dtype=np.float32)
