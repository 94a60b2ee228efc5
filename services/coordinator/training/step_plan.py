"""Plans of train steps: which completions are trained on, with which advantages and weights."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from services.coordinator.rollout.groups import DropReason, JudgedGroup, counted_tokens, num_counted_tokens
from services.coordinator.store.rows import TrainedGroup
from services.coordinator.training.reward_kl import Float64Array, RewardKl
from shoal.config import RunConfig
from shoal.grpo.advantage import RewardGroup, batch_normalized, completion_advantages, seen_rewards
from shoal.grpo.moments import Moments
from shoal.grpo.staleness import staleness
from shoal.grpo.token_advantage import token_advantages, uniform_advantages
from shoal.grpo.weighting import difficulty_weights, length_weights
from shoal.rollout import Completion, HandedGroup, Rollout, TrainBatch, TrainGroup, WeightVersion

_NO_REWARDS = Moments()


@dataclass
class _Sample:
    """A completion that is trained on, with the inputs of its loss."""

    group: JudgedGroup
    index: int
    """The completion's index in its group."""
    advantage: float
    weight: float = 1.0
    rewards_T: Float64Array | None = None
    """[T] the rewards at its tokens; None where no completion of the step has any."""
    advantages_T: Float64Array | None = None
    """[T] the advantages of its tokens, where each has one of its own."""

    @property
    def completion(self) -> Completion:
        return self.group.settled.completions[self.index]

    def rollout(self) -> Rollout:
        """Returns the completion with its advantage: the mean over its tokens, and each of these if they differ."""
        rollout = Rollout(self.completion, self.advantage, self.weight, self.group.rewards.rewards[self.index])
        if self.advantages_T is None:
            return rollout
        counted = self.advantages_T[counted_tokens(self.completion)]
        if not len(counted) or np.all(counted == counted[0]):
            return replace(rollout, advantage=float(counted[0]) if len(counted) else 0.0)
        token_advantages_T = self.advantages_T.astype(np.float32)
        return replace(rollout, advantage=float(counted.mean()), token_advantages=token_advantages_T)


@dataclass(frozen=True)
class StepPlan:
    """The groups of one step, divided into groups that are trained on and groups that are not."""

    batch: TrainBatch
    trained: tuple[TrainedGroup, ...]
    dropped: tuple[tuple[int, DropReason], ...]
    """Order number and reason of each group that is not trained on, without groups that were dropped before scoring."""
    moments: Moments = _NO_REWARDS
    """The moments of all rewards that the run has compared, including the rewards of this step."""


def plan_step(
    config: RunConfig,
    groups: Sequence[JudgedGroup],
    version: WeightVersion,
    train_step_id: str,
    kl: RewardKl | None = None,
    moments: Moments = _NO_REWARDS,
) -> StepPlan:
    """Plans one train step: advantages, weights, selected groups.

    Batch statistics of raw rewards ("batch_mean", "batch_std", "nonzero_share") cover every scored completion of the
    step. `batch_normalize` covers the groups that are trained on, and whitening covers the tokens that are trained on.
    With `batch_per_verifier`, each statistic covers only groups with the same verifiers. `moments` covers all rewards
    before this step.
    """
    kl = kl or RewardKl()
    compared = [group for group in groups if not group.settled.drop_reason]
    rewards = _compared_rewards(config, compared, kl)
    moments = seen_rewards(config.advantage, list(rewards.values()), moments)
    by_group: dict[int, Sequence[float | None]] = {}
    for part in _parts(config, compared):
        numbers = [group.order_number for group in part]
        advantages = completion_advantages(config.advantage, [rewards[number] for number in numbers], moments)
        by_group |= dict(zip(numbers, advantages, strict=True))
    selected = [group for group in groups if group.is_trained]
    if config.advantage.batch_normalize:
        for part in _parts(config, selected):
            by_group |= _batch_normalized(config, part, by_group)
    rollouts = _rollouts(config, selected, by_group, kl)
    train_groups, trained = [], []
    for group in selected:
        settled, chosen = group.settled, tuple(rollouts[group.order_number])
        age = staleness(version, (rollout.completion.oldest_version for rollout in chosen))
        train_groups.append(TrainGroup(settled.group_id, settled.prompt.token_ids, chosen, settled.traceparent))
        trained.append(TrainedGroup(group.order_number, age, chosen))
    batch = TrainBatch(
        train_step_id,
        version,
        config.sampling.temperature,
        tuple(train_groups),
        next_order_number=max((group.order_number for group in groups), default=-1) + 1,
    )
    dropped = tuple((group.order_number, group.drop_reason) for group in compared if group.drop_reason)
    return StepPlan(batch, tuple(trained), dropped, moments)


def handed_group(group: JudgedGroup, attempt: int) -> HandedGroup:
    """Returns what the learner may get of a group before its step: all but its advantages and weights."""
    settled = group.settled
    return HandedGroup(
        attempt,
        group.order_number,
        settled.group_id,
        settled.prompt.token_ids,
        tuple(settled.completions[index] for index in group.trained_indices),
        settled.traceparent,
    )


def _parts(config: RunConfig, groups: Sequence[JudgedGroup]) -> list[list[JudgedGroup]]:
    """Returns the groups that share the statistics of a batch: all, or those with the same verifiers."""
    parts: dict[frozenset[str], list[JudgedGroup]] = {}
    for group in groups:
        verifiers = frozenset(truth.verifier for truth in group.settled.prompt.ground_truths)
        parts.setdefault(verifiers if config.advantage.batch_per_verifier else frozenset(), []).append(group)
    return list(parts.values())


def _compared_rewards(config: RunConfig, groups: Sequence[JudgedGroup], kl: RewardKl) -> dict[int, RewardGroup]:
    """Returns the rewards of each group's completions, less the KL of whole completions, by order number."""
    has_kl = config.kl.reward_level == "completion"
    return {group.order_number: _penalized(group, kl) if has_kl else group.rewards for group in groups}


def _penalized(group: JudgedGroup, kl: RewardKl) -> RewardGroup:
    """`reward - coef x sum of KL` for each completion."""
    rewards = tuple(
        None if reward is None else reward - float(kl.penalty(group.order_number, completion).sum())
        for reward, completion in zip(group.rewards.rewards, group.settled.completions, strict=True)
    )
    return replace(group.rewards, rewards=rewards)


def _batch_normalized(
    config: RunConfig, groups: Sequence[JudgedGroup], by_group: Mapping[int, Sequence[float | None]]
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
    groups: Sequence[JudgedGroup],
    by_group: Mapping[int, Sequence[float | None]],
    kl: RewardKl,
) -> dict[int, list[Rollout]]:
    """Returns the rollouts that are trained on, by the group's order number."""
    samples = {
        group.order_number: [
            _Sample(group, index, by_group[group.order_number][index] or 0.0) for index in group.trained_indices
        ]
        for group in groups
    }
    every = list(chain.from_iterable(samples.values()))
    _set_token_rewards(config, groups, every, kl)
    _set_weights(config, every)
    for part in _parts(config, groups):
        _set_advantages(config, [sample for group in part for sample in samples[group.order_number]])
    return {number: [sample.rollout() for sample in of_group] for number, of_group in samples.items()}


def _set_advantages(config: RunConfig, samples: Sequence[_Sample]) -> None:
    """Spreads the advantages of completions over their tokens; whitening is over all of these."""
    is_discounted = config.advantage.discount < 1 or config.episodes.turn_discount < 1
    if not is_discounted and all(sample.rewards_T is None for sample in samples):
        num_tokens = [num_counted_tokens(sample.completion) for sample in samples]
        values = uniform_advantages(config.advantage, [sample.advantage for sample in samples], num_tokens)
        for sample, value in zip(samples, values, strict=True):
            sample.advantage = value
        return
    in_time = [(sample, _order_in_time(sample.completion)) for sample in samples]
    found = token_advantages(
        config.advantage,
        [sample.advantage for sample in samples],
        [counted_tokens(sample.completion)[order] for sample, order in in_time],
        [sample.rewards_T[order] for sample, order in in_time if sample.rewards_T is not None],
        [_discounts(config, sample.completion)[order] for sample, order in in_time],
    )
    for (sample, order), values_T in zip(in_time, found, strict=True):
        sample.advantages_T = np.empty_like(values_T)
        sample.advantages_T[order] = values_T


def _order_in_time(completion: Completion) -> npt.NDArray[np.int64]:
    """Returns [T]: the tokens in the order in which the policy sampled them, after tokens that it did not sample."""
    numbers_T = np.zeros(completion.num_tokens, np.int64)
    turns = () if completion.episode is None else completion.episode.turns
    for turn in turns:
        numbers_T[turn.start : turn.end] = turn.number
    return np.argsort(numbers_T, kind="stable")


def _discounts(config: RunConfig, completion: Completion) -> Float64Array:
    """Returns [T]: the discount after each token, multiplied by the turn's discount after a turn's last token."""
    discounts_T = np.full(completion.num_tokens, config.advantage.discount)
    turns = () if completion.episode is None else completion.episode.turns
    for turn in turns:
        if turn.end > turn.start:
            discounts_T[turn.end - 1] *= config.episodes.turn_discount
    return discounts_T


def _set_token_rewards(
    config: RunConfig, groups: Sequence[JudgedGroup], samples: Sequence[_Sample], kl: RewardKl
) -> None:
    """Gives each sample the rewards at its tokens, if any has some: the advantages of its steps, less the KL."""
    takes_kl = bool(kl.kl_T) and config.kl.reward_level == "token"
    has_steps = any(group.settled.step_rewards for group in groups)
    if not takes_kl and not has_steps:
        return
    by_step = _step_advantages(config, groups) if has_steps else {}
    for sample in samples:
        values_T = np.zeros(sample.completion.num_tokens)
        counted = np.flatnonzero(counted_tokens(sample.completion))
        for token, advantage in by_step.get((sample.group.order_number, sample.index), ()):
            # A step may end with tokens that are not the policy's: its last counted token before them gets the reward.
            before = counted[counted <= token]
            if len(before):
                values_T[before[-1]] += advantage
        penalty_T = kl.penalty(sample.group.order_number, sample.completion) if takes_kl else 0.0
        sample.rewards_T = values_T - penalty_T


def _step_advantages(
    config: RunConfig, groups: Sequence[JudgedGroup]
) -> dict[tuple[int, int], list[tuple[int, float]]]:
    """Token and advantage of each step, by the group's order number and the completion's index.

    Steps are compared as whole completions are: all steps of a group form one group of rewards.
    """
    flat = [
        [(index, reward) for index, rewards in enumerate(group.settled.step_rewards) for reward in rewards]
        for group in groups
    ]
    advantages = completion_advantages(
        config.advantage.model_copy(update={"per_verifier": False}),
        [RewardGroup(tuple(reward.value for _, reward in steps)) for steps in flat],
    )
    result: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for group, steps, values in zip(groups, flat, advantages, strict=True):
        for (index, reward), value in zip(steps, values, strict=True):
            result.setdefault((group.order_number, index), []).append((reward.token, value or 0.0))
    return result


def _set_weights(config: RunConfig, samples: Sequence[_Sample]) -> None:
    """Gives each sample its factor in the loss; the mean is 1."""
    weights = [1.0] * len(samples)
    if config.loss.difficulty_weight:
        weights = difficulty_weights([sample.group.correct_share or 0.0 for sample in samples])
    if config.loss.length_weight:
        lengths = length_weights([num_counted_tokens(sample.completion) for sample in samples])
        weights = [weight * length for weight, length in zip(weights, lengths, strict=True)]
    mean = statistics.fmean(weights) if weights else 1.0
    for sample, weight in zip(samples, weights, strict=True):
        sample.weight = weight / mean
