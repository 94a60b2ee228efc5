"""The completion tokens of some groups that count in the loss, concatenated in issue order.

Every rank has all these tokens. So each rank can compute the values of a whole mini-batch or step (divisors, means,
quantiles) alone, and all ranks get equal results. A packed row then picks its tokens by index.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.learner.loss.objectives.completions import Completions
from services.learner.model.contexts import loss_mask
from shoal.arrays import BoolArray
from shoal.rollout import Rollout, TrainGroup

_NO_PROMPT = np.zeros(0, np.int32)


@dataclass(frozen=True)
class LossTokens:
    """N tokens of S completions. Every tensor is [N], on the CPU."""

    behavior_logprobs_N: Tensor
    """The behavior log-probabilities, float32; NaN if unknown."""
    advantages_N: Tensor
    """The advantages, float32."""
    rewards_N: Tensor
    """The reward of the token's completion, float32; NaN if the completion has no reward."""
    weights_N: Tensor
    """The weight of the token's completion, float32. The weight is a factor of the completion's whole loss."""
    completions: Completions
    """The completions over which means are taken. An episode is one completion, also with several segments."""
    segments: Completions | None = None
    """The segment of each token. A completion that is not cut is one segment. None if no completion is cut."""

    @property
    def sequences(self) -> Completions:
        """The sequences over which ratios and filters are computed: each has the tokens sampled in one context."""
        return self.completions if self.segments is None else self.segments

    def __len__(self) -> int:
        return len(self.advantages_N)

    @classmethod
    def of(cls, groups: Sequence[TrainGroup]) -> "LossTokens":
        """Collects the tokens of some groups."""
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        masks = [loss_mask(rollout) for rollout in rollouts]
        counts = np.array([int(mask.sum()) for mask in masks])

        def per_token(values: list[float]) -> Tensor:
            return torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), counts))

        behavior = [rollout.completion.behavior_logprobs[mask] for rollout, mask in zip(rollouts, masks, strict=True)]
        advantages = [_advantages(rollout)[mask] for rollout, mask in zip(rollouts, masks, strict=True)]
        return cls(
            behavior_logprobs_N=torch.from_numpy(np.concatenate(behavior)),
            advantages_N=torch.from_numpy(np.concatenate(advantages)),
            rewards_N=per_token([np.nan if rollout.reward is None else rollout.reward for rollout in rollouts]),
            weights_N=per_token([rollout.weight for rollout in rollouts]),
            completions=Completions(torch.from_numpy(np.repeat(np.arange(len(rollouts)), counts)), len(rollouts)),
            segments=_segments(rollouts, masks),
        )


def _segments(rollouts: Sequence[Rollout], masks: Sequence[BoolArray]) -> Completions | None:
    if not any(rollout.completion.episode is not None for rollout in rollouts):
        return None
    counts = [
        int(mask[segment.start : segment.end].sum())
        for rollout, mask in zip(rollouts, masks, strict=True)
        for segment in rollout.completion.segments(_NO_PROMPT)
    ]
    if len(counts) == len(rollouts):
        return None
    return Completions(torch.from_numpy(np.repeat(np.arange(len(counts)), counts)), len(counts))


def _advantages(rollout: Rollout) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Returns the advantages of all tokens of a completion, [T]."""
    if rollout.token_advantages is not None:
        return np.asarray(rollout.token_advantages, dtype=np.float32)
    return np.full(rollout.completion.num_tokens, rollout.advantage, dtype=np.float32)
