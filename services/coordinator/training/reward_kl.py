"""The KL divergence from the reference policy, for runs in which the KL is part of the reward."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from services.coordinator.rollout.groups import JudgedGroup, counted_tokens
from services.coordinator.workers.learner_client import LearnerClient
from shoal.arrays import Float32Array
from shoal.config.live import LiveConfig
from shoal.grpo.kl import adapted_coef, kl_sums, reward_kl
from shoal.rollout import Completion

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RewardKl:
    """The KL divergence of one step's completions from the reference, to be subtracted from their rewards."""

    coef: float = 0.0
    kl_T: Mapping[tuple[int, int], Float64Array] = field(default_factory=dict)
    """[T] an estimate for each token, by the group's order number and the sample's index; 0 where the token does not
    count in the loss."""
    mean: float = 0.0
    """The KL, averaged over the counted tokens of each completion, and then over the completions."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The KL estimates to report, by metric name."""

    def penalty(self, order_number: int, completion: Completion) -> Float64Array:
        """Returns the amount that the KL subtracts from the reward of each token, [T]."""
        kl_T = self.kl_T.get((order_number, completion.sample_index))
        return np.zeros(completion.num_tokens) if kl_T is None else self.coef * kl_T


class RewardKlController:
    """Measures the KL divergence from the reference, and adapts its coefficient after each step.

    Uses the log-probabilities that the engine reported, since the tokens were drawn from them.
    """

    def __init__(self, config: LiveConfig, learner: LearnerClient) -> None:
        self._config = config
        self._learner = learner
        self.coef = config().kl.coef
        """The coefficient of the next step."""

    @property
    def is_enabled(self) -> bool:
        """Whether the KL from the reference is part of the reward."""
        return self._config().kl.place == "reward" and self._config().kl.coef > 0

    async def measure(self, groups: Sequence[JudgedGroup]) -> RewardKl:
        """Measures the KL of all completions in the groups that are trained on."""
        if not self.is_enabled:
            return RewardKl()
        pairs = [
            (group.settled, completion)
            for group in groups
            if group.is_trained
            for completion in group.settled.completions
        ]
        # One after the other: the segments of the first completion, those of the second, and so on.
        parts = [(c, segment) for group, c in pairs for segment in c.segments(group.prompt.token_ids)]
        logprobs = await self._learner.reference_logprobs(
            [np.concatenate([s.prompt_token_ids, c.token_ids[s.start : s.end]]) for c, s in parts],
            self._config().sampling.temperature,
            # Where the policy's log-probabilities are over a support, so are the reference's.
            [c.support.part(s.start, s.end) for c, s in parts if c.support is not None],
        )
        # The log-probabilities of the prompt, if any, come first.
        scored = [values[len(values) - (s.end - s.start) :] for (_, s), values in zip(parts, logprobs, strict=True)]
        ends = np.cumsum([c.num_tokens for _, c in pairs])
        reference = np.split(np.concatenate(scored), ends[:-1]) if scored else []
        behavior = [completion.behavior_logprobs for _, completion in pairs]
        masks = [counted_tokens(completion) for _, completion in pairs]
        estimates = [
            np.where(mask, reward_kl(self._config().kl, behavior_T, reference_T), 0.0)
            for behavior_T, reference_T, mask in zip(behavior, reference, masks, strict=True)
        ]
        keys = [(group.order_number, completion.sample_index) for group, completion in pairs]
        means = [float(kl_T.sum()) / max(1, int(mask.sum())) for kl_T, mask in zip(estimates, masks, strict=True)]
        counted = [(b_T[mask], r_T[mask]) for b_T, r_T, mask in zip(behavior, reference, masks, strict=True)]
        return RewardKl(
            self.coef,
            dict(zip(keys, estimates, strict=True)),
            statistics.fmean(means or [0.0]),
            _estimator_metrics(counted),
        )

    def adapt(self, kl: RewardKl) -> dict[str, float]:
        """Adapts the coefficient so that the KL approaches `kl.target`; returns the metrics of the step's KL."""
        if not kl.kl_T:
            return {}
        mean = statistics.fmean(float(kl_T.sum()) for kl_T in kl.kl_T.values())
        self.coef = adapted_coef(self._config().kl, kl.coef, kl.mean, len(kl.kl_T))
        return {**kl.metrics, "objective/reward_kl": mean, "objective/reward_kl_coef": kl.coef}


def _estimator_metrics(pairs: Sequence[tuple[Float32Array, Float32Array]]) -> dict[str, float]:
    """The estimators that a learner with KL in its loss reports, from [T] behavior and reference log-probabilities."""
    if not pairs:
        return {}
    means = np.mean([kl_sums(behavior_T, reference_T) for behavior_T, reference_T in pairs], axis=0)
    return dict(zip(("objective/kl", "objective/kl2", "objective/kl3"), map(float, means), strict=True))
