"""What a train step is taken over."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from services.coordinator.judgement import correct_share, drop_reason, reward_group, trained_places
from services.coordinator.sampling import SettledGroup
from shoal.config import RunConfig
from shoal.grpo.advantage import RewardGroup, batch_normalized, completion_advantages, seen_rewards
from shoal.grpo.moments import Moments
from shoal.grpo.staleness import staleness
from shoal.grpo.token_advantage import token_advantages, uniform_advantages
from shoal.grpo.weighting import difficulty_weights, length_weights
from shoal.rollout import Completion, Rollout, TrainBatch, TrainGroup, WeightVersion

Float64Array = npt.NDArray[np.float64]


_NOTHING_SEEN = Moments()


@dataclass(frozen=True)
class RewardKl:
    """How far completions are from the reference, to be taken from their rewards."""

    coef: float = 0.0
    kl_T: Mapping[tuple[int, int], Float64Array] = field(default_factory=dict)
    """[T] an estimate for each token, by the group's order number and the sample's index; 0 where the token does not
    count."""
    mean: float = 0.0
    """Over the completions, of the mean of their tokens that count."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What is reported of it."""

    def penalty(self, order_number: int, completion: Completion) -> Float64Array:
        """[T] what each token's reward loses."""
        kl_T = self.kl_T.get((order_number, completion.sample_index))
        return np.zeros(completion.num_tokens) if kl_T is None else self.coef * kl_T


@dataclass(frozen=True)
class TrainedGroup:
    """A group that is trained on, as the ledger keeps it."""

    order_number: int
    staleness: int
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True)
class StepPlan:
    """The groups of one step, sorted into those that are trained on and those that are not."""

    batch: TrainBatch
    trained: tuple[TrainedGroup, ...]
    dropped: tuple[tuple[int, str], ...]
    """Order number and reason of each group that is not. Groups dropped earlier are not repeated here."""
    moments: Moments = _NOTHING_SEEN
    """Of all rewards that the run has compared, those of this step included."""

    @property
    def why_nothing(self) -> str:
        """Why no group is trained on, for people. Example: "no group is trained on: 3 no_signal, 1 not_scored"."""
        reasons = Counter(reason for _, reason in self.dropped)
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        return f"no group is trained on: {counts or 'all were dropped before'}"


def plan_step(
    config: RunConfig,
    groups: Sequence[SettledGroup],
    version: WeightVersion,
    train_step_id: str,
    kl: RewardKl | None = None,
    moments: Moments = _NOTHING_SEEN,
) -> StepPlan:
    """Computes the advantages, and leaves out what is not trained on.

    Statistics of raw rewards over the batch ("batch_mean", "batch_std", "nonzero_share") are over every scored
    completion of the step; `batch_normalize` is over those of the groups that are trained on; whitening over the
    tokens that are trained on. `moments` are of all rewards before this step.
    """
    judged = [(group, drop_reason(config, group)) for group in groups]
    dropped = tuple((group.order_number, reason) for group, reason in judged if reason and not group.drop_reason)
    compared = [group for group in groups if not group.drop_reason]
    rewards = _compared_rewards(config, compared, kl or RewardKl())
    moments = seen_rewards(config.advantage, rewards, moments)
    advantages = completion_advantages(config.advantage, rewards, moments)
    by_group = {group.order_number: own for group, own in zip(compared, advantages, strict=True)}
    kept = [group for group, reason in judged if not reason]
    if config.advantage.batch_normalize:
        by_group |= _batch_normalized(config, kept, by_group)
    rollouts = _rollouts(config, kept, by_group, kl or RewardKl())
    train_groups, trained = [], []
    for group in kept:
        own = tuple(rollouts[group.order_number])
        age = staleness(version, (rollout.completion.oldest_version for rollout in own))
        train_groups.append(TrainGroup(group.group_id, group.prompt.token_ids, own, group.traceparent))
        trained.append(TrainedGroup(group.order_number, age, own))
    batch = TrainBatch(train_step_id, version, config.sampling.temperature, tuple(train_groups))
    return StepPlan(batch, tuple(trained), dropped, moments)


def _compared_rewards(config: RunConfig, groups: Sequence[SettledGroup], kl: RewardKl) -> list[RewardGroup]:
    """What the completions of each group earned, less the KL of whole completions."""
    rewards = [reward_group(config, group) for group in groups]
    if config.kl.reward_level == "completion":
        rewards = [_penalized(group, own, kl) for group, own in zip(groups, rewards, strict=True)]
    return rewards


def _penalized(group: SettledGroup, own: RewardGroup, kl: RewardKl) -> RewardGroup:
    """`reward - coef x sum of KL` for each completion."""
    rewards = tuple(
        None if reward is None else reward - float(kl.penalty(group.order_number, completion).sum())
        for reward, completion in zip(own.rewards, group.completions, strict=True)
    )
    return replace(own, rewards=rewards)


def _batch_normalized(
    config: RunConfig, groups: Sequence[SettledGroup], by_group: Mapping[int, Sequence[float | None]]
) -> dict[int, list[float | None]]:
    present = [[value for value in by_group[group.order_number] if value is not None] for group in groups]
    result = {}
    for group, values in zip(groups, batch_normalized(config.advantage, present), strict=True):
        remaining = iter(values)
        result[group.order_number] = [
            None if value is None else next(remaining) for value in by_group[group.order_number]
        ]
    return result


def _rollouts(
    config: RunConfig,
    groups: Sequence[SettledGroup],
    by_group: Mapping[int, Sequence[float | None]],
    kl: RewardKl,
) -> dict[int, list[Rollout]]:
    """What is trained on, by the group's order number."""
    places = [(group, place) for group in groups for place in trained_places(config, group)]
    completions = [group.completions[place] for group, place in places]
    advantages = [by_group[group.order_number][place] or 0.0 for group, place in places]
    token_rewards_T = _token_rewards(config, groups, places, kl)
    advantages_T: Sequence[Float64Array | None] = [None] * len(places)
    if token_rewards_T or config.advantage.discount < 1:
        masks_T = [counting_tokens(completion) for completion in completions]
        advantages_T = token_advantages(config.advantage, advantages, masks_T, token_rewards_T)
    else:
        num_tokens = [_num_counting(completion) for completion in completions]
        advantages = uniform_advantages(config.advantage, advantages, num_tokens)
    weights = _weights(config, places)
    rewards = {group.order_number: reward_group(config, group).rewards for group in groups}
    result: dict[int, list[Rollout]] = {group.order_number: [] for group in groups}
    for (group, place), advantage, values_T, weight in zip(places, advantages, advantages_T, weights, strict=True):
        completion = group.completions[place]
        rollout = Rollout(completion, advantage, weight, rewards[group.order_number][place])
        result[group.order_number].append(rollout if values_T is None else _with_tokens(rollout, values_T))
    return result


def _with_tokens(rollout: Rollout, advantages_T: Float64Array) -> Rollout:
    """With an advantage for each token if they differ; their mean stands for the whole."""
    counting = advantages_T[counting_tokens(rollout.completion)]
    if not len(counting) or np.all(counting == counting[0]):
        return replace(rollout, advantage=float(counting[0]) if len(counting) else 0.0)
    return replace(rollout, advantage=float(counting.mean()), token_advantages=advantages_T.astype(np.float32))


def _token_rewards(
    config: RunConfig, groups: Sequence[SettledGroup], places: Sequence[tuple[SettledGroup, int]], kl: RewardKl
) -> list[Float64Array]:
    """[T] for each completion what stands at its tokens: the advantages of its steps, less the KL. Empty where
    nothing does."""
    takes_kl = bool(kl.kl_T) and config.kl.reward_level == "token"
    has_steps = any(group.step_rewards for group in groups)
    if not takes_kl and not has_steps:
        return []
    by_step = _step_advantages(config, groups) if has_steps else {}
    result = []
    for group, place in places:
        completion = group.completions[place]
        values_T = np.zeros(completion.num_tokens)
        counting = np.flatnonzero(counting_tokens(completion))
        for token, advantage in by_step.get((group.order_number, place), ()):
            # A step that ends with what is not the policy's own ends for it with its last token before.
            before = counting[counting <= token]
            if len(before):
                values_T[before[-1]] += advantage
        result.append(values_T - kl.penalty(group.order_number, completion) if takes_kl else values_T)
    return result


def _step_advantages(
    config: RunConfig, groups: Sequence[SettledGroup]
) -> dict[tuple[int, int], list[tuple[int, float]]]:
    """Token and advantage of each step, by the group's order number and the completion's place: as whole completions
    are compared, with all steps of a group for its rewards."""
    flat = [
        [(place, reward) for place, rewards in enumerate(group.step_rewards) for reward in rewards] for group in groups
    ]
    advantages = completion_advantages(
        config.advantage.model_copy(update={"per_verifier": False}),
        [RewardGroup(tuple(reward.value for _, reward in steps)) for steps in flat],
    )
    result: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for group, steps, values in zip(groups, flat, advantages, strict=True):
        for (place, reward), value in zip(steps, values, strict=True):
            result.setdefault((group.order_number, place), []).append((reward.token, value or 0.0))
    return result


def _weights(config: RunConfig, places: Sequence[tuple[SettledGroup, int]]) -> list[float]:
    """The factor of each completion in the loss: 1 on average."""
    weights = [1.0] * len(places)
    if config.loss.difficulty_weight:
        shares = {group.order_number: correct_share(group) or 0.0 for group, _ in places}
        weights = difficulty_weights([shares[group.order_number] for group, _ in places])
    if config.loss.length_weight:
        lengths = length_weights([group.completions[place].num_tokens for group, place in places])
        weights = [weight * length for weight, length in zip(weights, lengths, strict=True)]
    mean = statistics.fmean(weights) if weights else 1.0
    return [weight / mean for weight in weights]


def _num_counting(completion: Completion) -> int:
    return completion.num_tokens if completion.loss_mask is None else int(completion.loss_mask.sum())


def counting_tokens(completion: Completion) -> npt.NDArray[np.bool_]:
    """[T] True where a token counts in the loss."""
    return np.ones(completion.num_tokens, dtype=bool) if completion.loss_mask is None else completion.loss_mask
