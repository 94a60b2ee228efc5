"""Advantages of completions, from the rewards of a step's groups.

`advantage = (reward - baseline) / scale`, with the baseline and the scale that `[advantage]` names. docs/algorithms.md
lists the estimators of the papers. `shoal.grpo.token_advantage` computes the advantages of single tokens.

The reward of a completion that could not be scored is None. Such a completion takes no part in any statistic, and its
advantage is None. Sums are exact (`math.fsum`), so that neither order nor grouping of a batch matters.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.config.tables.advantage import AdvantageConfig
from shoal.grpo.moments import Moments

Values = Sequence[float | None]
"""One value for each completion of a group; None for a completion without a value."""

_NO_MOMENTS = Moments()

WITHIN_GROUP = ("group_mean", "leave_one_out", "second_best", "length_weighted")
"""Baselines that come from a group's own rewards. With these baselines equal rewards have an advantage of exactly 0."""


@dataclass(frozen=True)
class RewardGroup:
    """The rewards of the completions of one prompt.

    Example: `RewardGroup(rewards=(1.0, 0.0, None))`.
    """

    rewards: tuple[float | None, ...]
    """The reward of each completion, [N]."""
    parts: tuple[tuple[float | None, ...], ...] = ()
    """The value of each verifier for each completion, [N][K]; needed with `per_verifier`."""
    part_weights: tuple[float, ...] = ()
    """The weight of each verifier, [K]."""
    num_tokens: tuple[int, ...] = ()
    """The lengths of the completions, [N]; needed with the baseline "length_weighted"."""
    greedy_reward: float | None = None
    """The reward of the prompt's greedy completion; needed with baseline "greedy"."""


def weighted_sum(values: Values, weights: Sequence[float]) -> float | None:
    """Returns the weighted sum of the values that are not None; None if all values are None."""
    products = [weight * value for value, weight in zip(values, weights, strict=True) if value is not None]
    return math.fsum(products) if products else None


def completion_advantages(
    config: AdvantageConfig, groups: Sequence[RewardGroup], moments: Moments = _NO_MOMENTS
) -> list[list[float | None]]:
    """Computes `(clip(reward) - baseline) / scale` for each completion of each group, clipped to +-`reward_clip`.

    The batch's statistics ("batch_mean", "batch_std", "nonzero_share") cover all of `groups`. The run's statistics
    ("running_mean", "running_std") are `moments`, to which `seen_rewards` has already added these groups. A group with
    a single reward, or with equal rewards, gets exactly 0 if the baseline comes from the group itself: in floating
    point the mean of equal numbers may differ from the numbers, and the division would magnify the difference.

    Example: rewards (1, 0, 0) with baseline "group_mean" and scale "none" have the advantages (2/3, -1/3, -1/3).
    """
    if config.per_verifier:
        advantages = _per_verifier(config, groups)
    else:
        advantages = _compare(config, _clipped(config, groups), groups, moments)
    limit = config.reward_clip
    return advantages if limit is None else [[_clip(value, -limit, limit) for value in group] for group in advantages]


def seen_rewards(config: AdvantageConfig, groups: Sequence[RewardGroup], moments: Moments) -> Moments:
    """Adds the groups' rewards, clipped to `reward_min` and `reward_max`, to the moments of the run's rewards."""
    return moments.seen([value for group in _clipped(config, groups) for value in group if value is not None])


def _clipped(config: AdvantageConfig, groups: Sequence[RewardGroup]) -> list[list[float | None]]:
    return [[_clip(reward, config.reward_min, config.reward_max) for reward in group.rewards] for group in groups]


def batch_normalized(config: AdvantageConfig, advantages: Sequence[Sequence[float]]) -> list[list[float]]:
    """Computes `(a - mean) / (std + batch_std_eps)` over all groups' completions (ddof 1; GDPO, arXiv:2601.05242).

    Equal advantages, and a single advantage, become exactly 0.
    """
    flat = [value for group in advantages for value in group]
    if len(set(flat)) <= 1:
        return [[0.0] * len(group) for group in advantages]
    mean, divisor = _mean(flat), _std(flat, 1) + config.batch_std_eps
    return [[(value - mean) / divisor for value in group] for group in advantages]


def has_signal(config: AdvantageConfig, group: RewardGroup) -> bool:
    """Returns whether the group's own rewards show that training on the group can change the policy.

    With a baseline from the group, the rewards must differ ("second_best": one reward must exceed all others;
    `per_verifier`: the values of a verifier with a nonzero weight must differ). With "greedy", a reward must differ
    from the greedy completion's. With "none", a reward must be nonzero. With the other baselines, any reward suffices.
    """
    clipped = (_clip(reward, config.reward_min, config.reward_max) for reward in group.rewards)
    rewards = sorted(reward for reward in clipped if reward is not None)
    if config.per_verifier and config.baseline in WITHIN_GROUP:
        return any(
            weight and len({value for value in column if value is not None}) > 1
            for column, weight in zip(_columns(group), group.part_weights, strict=True)
        )
    if config.baseline == "second_best":
        return len(rewards) > 1 and rewards[-1] != rewards[-2]
    if config.baseline == "greedy":
        greedy = _clip(group.greedy_reward, config.reward_min, config.reward_max)
        return greedy is not None and any(reward != greedy for reward in rewards)
    if config.baseline == "none":
        return any(rewards) or any(any(column) for column in _columns(group))
    if config.baseline in ("batch_mean", "running_mean"):
        return bool(rewards)
    return len(set(rewards)) > 1


def _per_verifier(config: AdvantageConfig, groups: Sequence[RewardGroup]) -> list[list[float | None]]:
    num_parts = max((len(group.part_weights) for group in groups), default=0)
    compared = []
    for part in range(num_parts):
        columns = [
            column[part] if part < len(column := _columns(group)) else [None] * len(group.rewards) for group in groups
        ]
        compared.append(_compare(config, columns, groups, _NO_MOMENTS))
    return [
        [
            weighted_sum([compared[k][index][i] for k in range(len(group.part_weights))], group.part_weights)
            if group.rewards[i] is not None
            else None
            for i in range(len(group.rewards))
        ]
        for index, group in enumerate(groups)
    ]


def _columns(group: RewardGroup) -> list[list[float | None]]:
    """Transposes the parts from [N][K] to [K][N]; a completion without a reward has no values."""
    return [
        [parts[k] if reward is not None else None for parts, reward in zip(group.parts, group.rewards, strict=True)]
        for k in range(len(group.part_weights))
    ]


def _compare(
    config: AdvantageConfig, rewards: Sequence[Values], groups: Sequence[RewardGroup], moments: Moments
) -> list[list[float | None]]:
    batch = [reward for group in rewards for reward in group if reward is not None]
    divide_by_batch = _batch_scale(config, batch, moments)
    batch_mean = _mean(batch) if batch else 0.0
    wide_mean = moments.mean if config.baseline == "running_mean" else batch_mean
    is_flat = not moments.squares if config.baseline == "running_mean" else len(set(batch)) <= 1
    result: list[list[float | None]] = []
    for values, group in zip(rewards, groups, strict=True):
        present = [value for value in values if value is not None]
        if _has_no_advantage(config, present, group, is_flat=is_flat):
            result.append([None if value is None else 0.0 for value in values])
            continue
        baseline = _baseline(config, values, group, wide_mean)
        divide = divide_by_batch or _group_scale(config, present)
        result.append(
            [None if value is None else divide(value - baseline(i, value), value) for i, value in enumerate(values)]
        )
    return result


def _has_no_advantage(config: AdvantageConfig, present: Sequence[float], group: RewardGroup, *, is_flat: bool) -> bool:
    """Returns whether a group's advantages are all 0. `is_flat`: all rewards of the batch, or of the run, are equal."""
    if config.baseline in WITHIN_GROUP:
        return len(set(present)) <= 1
    if config.baseline == "greedy":
        return group.greedy_reward is None
    return config.baseline in ("batch_mean", "running_mean") and is_flat


def _baseline(
    config: AdvantageConfig, values: Values, group: RewardGroup, wide_mean: float
) -> Callable[[int, float], float]:
    """Returns the baseline as a function of a completion's index and value. Only for groups with an advantage.

    `wide_mean` is the mean of the batch, or of the run.
    """
    present = [value for value in values if value is not None]
    total, count = math.fsum(present), len(present)
    match config.baseline:
        case "group_mean":
            return lambda _, value: total / count
        case "leave_one_out":
            return lambda _, value: (total - value) / (count - 1)
        case "batch_mean" | "running_mean":
            return lambda _, value: wide_mean
        case "greedy":
            greedy = _clip(group.greedy_reward, config.reward_min, config.reward_max) or 0.0
            return lambda _, value: greedy
        case "length_weighted":
            weights = [n for n, value in zip(group.num_tokens, values, strict=True) if value is not None]
            num_tokens = sum(weights)
            # Without any token there are no weights.
            mean = math.fsum(w * v for w, v in zip(weights, present, strict=True)) / num_tokens if num_tokens else 0.0
            return lambda _, value: mean if num_tokens else total / count
        case "second_best":
            best, second = sorted(present, reverse=True)[:2]
            # Only the best value has an advantage, and only if no other value equals it.
            return lambda _, value: second if value == best else value
        case "none":
            return lambda _, value: 0.0


_Divide = Callable[[float, float], float]
"""Divides a difference by the scale; the second argument is the value itself."""


def _batch_scale(config: AdvantageConfig, batch: Sequence[float], moments: Moments) -> _Divide | None:
    """Returns the division by a statistic of the batch or the run; None if `scale` is not such a statistic."""
    if config.scale in ("batch_std", "running_std"):
        std = _std(batch, config.std_ddof) if config.scale == "batch_std" else moments.std(config.std_ddof)
        divisor = std + config.std_eps if std else 0.0
    elif config.scale == "nonzero_share":
        divisor = sum(1 for value in batch if value) / len(batch) if batch else 0.0
    else:
        return None
    return lambda difference, _: difference / divisor if divisor else difference


def _group_scale(config: AdvantageConfig, present: Sequence[float]) -> _Divide:
    if config.scale == "group_std":
        divisor = _std(present, config.std_ddof) + config.std_eps
        return lambda difference, _: difference / divisor if divisor else difference
    if config.scale == "leave_one_out_std":
        others = {value: _std(_without(present, value), config.std_ddof) for value in set(present)}
        # Equal siblings give no scale.
        return lambda difference, value: difference / (others[value] + config.std_eps) if others[value] else difference
    return lambda difference, _: difference


def _without(values: Sequence[float], value: float) -> list[float]:
    rest = list(values)
    rest.remove(value)
    return rest


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _std(values: Sequence[float], ddof: int) -> float:
    """Returns the standard deviation; 0 for equal values, and for too few values."""
    if len(set(values)) <= 1 or len(values) <= ddof:
        return 0.0
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - ddof))


def _clip(value: float | None, low: float | None, high: float | None) -> float | None:
    if value is None:
        return None
    if low is not None:
        value = max(value, low)
    return value if high is None else min(value, high)
