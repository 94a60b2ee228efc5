"""The KL divergence from the reference, where it is a part of the reward."""

import statistics
from collections.abc import Sequence

import numpy as np

from services.coordinator.judgement import drop_reason
from services.coordinator.learner import Learner
from services.coordinator.sampling import SettledGroup
from services.coordinator.step import RewardKl, counting_tokens
from shoal.config import RunConfig
from shoal.grpo.kl import adapted_coef, kl_sums, reward_kl
from shoal.rollout import Float32Array


class Reference:
    """Asks the learner for the reference's log-probabilities, and holds the coefficient.

    The policy's side is what the engine reported: the distribution that the tokens were drawn from.
    """

    def __init__(self, config: RunConfig, learner: Learner) -> None:
        self._config = config
        self._learner = learner
        self.coef = config.kl.coef
        """Of the next step."""

    @property
    def is_in_reward(self) -> bool:
        """Whether rewards depend on the reference at all."""
        return self._config.kl.place == "reward" and self._config.kl.coef > 0

    async def measure(self, groups: Sequence[SettledGroup]) -> RewardKl:
        """How far the completions of those groups are from it that will be trained on."""
        if not self.is_in_reward:
            return RewardKl()
        chosen = [
            (group, completion)
            for group in groups
            if not drop_reason(self._config, group)
            for completion in group.completions
        ]
        logprobs = await self._learner.reference_logprobs(
            [np.concatenate([group.prompt.token_ids, completion.token_ids]) for group, completion in chosen],
            self._config.sampling.temperature,
        )
        # The prompt's own log-probabilities come first.
        reference = [own[len(own) - c.num_tokens :] for (_, c), own in zip(chosen, logprobs, strict=True)]
        pairs = [(c.behavior_logprobs, own) for (_, c), own in zip(chosen, reference, strict=True)]
        masks = [counting_tokens(completion) for _, completion in chosen]
        estimates = [reward_kl(self._config.kl, *pair) * mask for pair, mask in zip(pairs, masks, strict=True)]
        places = [(group.order_number, completion.sample_index) for group, completion in chosen]
        means = [float(kl_T.sum()) / max(1, int(mask.sum())) for kl_T, mask in zip(estimates, masks, strict=True)]
        counting = [(behavior[mask], own[mask]) for (behavior, own), mask in zip(pairs, masks, strict=True)]
        return RewardKl(
            self.coef, dict(zip(places, estimates, strict=True)), statistics.fmean(means or [0.0]), _figures(counting)
        )

    def adapt(self, kl: RewardKl) -> dict[str, float]:
        """Moves the coefficient towards `kl.target`; returns the step's figures."""
        if not kl.kl_T:
            return {}
        mean = statistics.fmean(float(kl_T.sum()) for kl_T in kl.kl_T.values())
        self.coef = adapted_coef(self._config.kl, kl.coef, kl.mean, len(kl.kl_T))
        return {**kl.figures, "objective/reward_kl": mean, "objective/reward_kl_coef": kl.coef}


def _figures(pairs: Sequence[tuple[Float32Array, Float32Array]]) -> dict[str, float]:
    """The estimators that a learner with KL in its loss reports, from [T] behavior and reference log-probabilities."""
    if not pairs:
        return {}
    means = np.mean([kl_sums(behavior_T, reference_T) for behavior_T, reference_T in pairs], axis=0)
    return dict(zip(("objective/kl", "objective/kl2", "objective/kl3"), map(float, means), strict=True))
