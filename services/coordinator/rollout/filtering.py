"""The filtering of groups by rewards and drop rules, down to the completions that are trained on.

A group is judged when it settles, and again if the configuration changes before the group's step.
"""

import math

from services.coordinator.rollout.groups import DropReason, JudgedGroup, SettledGroup, num_counted_tokens
from shoal.config import RunConfig
from shoal.config.tables.reward import RewardConfig
from shoal.config.tables.verifiers import ZERO_AT_BEST
from shoal.grpo.advantage import WITHIN_GROUP, RewardGroup, has_signal, weighted_sum
from shoal.grpo.correctness import CORRECT, deciding_values, environment_reward, is_correct
from shoal.rollout import FinishReason
from shoal.scores import Score, ScoreOutcome


def judge_group(config: RunConfig, group: SettledGroup) -> JudgedGroup:
    """Judges a settled group. The verdict depends only on the group and the configuration."""
    rewards = _reward_group(config, group)
    share = _correct_share(config.reward, group)
    verdicts_differ = _verdicts_differ(config.reward, group)
    unmasked = _unmasked_indices(config, group, rewards)
    reason = (
        group.drop_reason
        or _signal_problem(config, group, rewards, verdicts_differ=verdicts_differ)
        or _other_problem(config, share, unmasked)
    )
    return JudgedGroup(
        settled=group,
        rewards=rewards,
        max_reward=_max_reward(config, group),
        correct_share=share,
        verdicts_differ=verdicts_differ,
        drop_reason=reason,
        trained_indices=() if reason else unmasked,
    )


def _signal_problem(
    config: RunConfig, group: SettledGroup, rewards: RewardGroup, *, verdicts_differ: bool | None
) -> DropReason | None:
    """Returns the first rule that drops a scored group because its rewards or verdicts lack a signal."""
    num_needed = 2 if config.advantage.baseline in WITHIN_GROUP else 1
    num_scored = sum(reward is not None for reward in rewards.rewards)
    greedy_is_missing = config.advantage.baseline == "greedy" and rewards.greedy_reward is None
    if num_scored < num_needed or greedy_is_missing:
        return DropReason.NOT_SCORED
    if not config.grpo.keep_zero_signal and not _steps_differ(group) and not has_signal(config.advantage, rewards):
        return DropReason.NO_SIGNAL
    if config.grpo.filter_groups_by == "correct" and verdicts_differ is False:
        return DropReason.EQUAL_VERDICTS
    return None


def _other_problem(config: RunConfig, share: float | None, unmasked: tuple[int, ...]) -> DropReason | None:
    """Returns the first rule that drops a scored group for its difficulty, or because masks leave no completion."""
    low, high = config.grpo.difficulty_low, config.grpo.difficulty_high
    if share is not None and low is not None and share <= low:
        return DropReason.TOO_HARD
    if share is not None and high is not None and share >= high:
        return DropReason.TOO_EASY
    return None if unmasked else DropReason.MASKED


def _correct_share(reward: RewardConfig, group: SettledGroup) -> float | None:
    scored = [score for score in group.scores if score.outcome is ScoreOutcome.SCORED]
    verdicts = [verdict for score in scored if (verdict := is_correct(reward, score)) is not None]
    return sum(verdicts) / len(verdicts) if verdicts else None


def _verdicts_differ(reward: RewardConfig, group: SettledGroup) -> bool | None:
    """Returns whether verdicts on correctness differ. The reward of an environment is not shaping, so it counts too."""
    scored = [score for score in group.scores if score.outcome is ScoreOutcome.SCORED]
    paid = [environment_reward(score) for score in scored]
    deciding = [
        (deciding_values(reward, score.verifier_scores, earned), earned)
        for score, earned in zip(scored, paid, strict=True)
    ]
    if len(deciding) < 2 or not any(values for values, _ in deciding):
        return None
    return _steps_differ(group) or len(set(deciding)) > 1


def _steps_differ(group: SettledGroup) -> bool:
    return len({reward.value for rewards in group.step_rewards for reward in rewards}) > 1


def _max_reward(config: RunConfig, group: SettledGroup) -> float:
    reward = config.reward
    weights = [truth.weight for truth in group.prompt.ground_truths if truth.verifier not in ZERO_AT_BEST]
    paid = reward.verification_reward * math.fsum(weights) * CORRECT
    if group.prompt.environment is not None and not group.prompt.ground_truths:
        paid = CORRECT
    if not reward.apply_verifiable_reward:
        paid = 0.0
    is_added = reward.format.mode == "add" or not reward.apply_verifiable_reward
    return paid + (reward.format.value if reward.format.kind != "none" and is_added else 0.0)


def _reward_group(config: RunConfig, group: SettledGroup) -> RewardGroup:
    """Returns the rewards of a group, by completion.

    A completion without a reward has None, never 0: a failed verifier gives no verdict. With
    `advantage.partial_rewards` the verifiers that scored make up its reward.
    """
    weights = tuple(truth.weight for truth in group.prompt.ground_truths)
    partial = config.advantage.partial_rewards
    return RewardGroup(
        rewards=tuple(_reward(score, weights, partial=partial) for score in group.scores),
        parts=tuple(map(_part_values, group.scores)) if config.advantage.per_verifier else (),
        part_weights=weights if config.advantage.per_verifier else (),
        num_tokens=tuple(map(num_counted_tokens, group.completions)),
        greedy_reward=_reward(group.greedy_score, weights, partial=partial) if group.greedy_score else None,
    )


def _reward(score: Score, weights: tuple[float, ...], *, partial: bool) -> float | None:
    if score.outcome is ScoreOutcome.SCORED:
        return score.reward
    return weighted_sum(_part_values(score), weights) if partial else None


def _part_values(score: Score) -> tuple[float | None, ...]:
    return tuple(part.value if part.outcome is ScoreOutcome.SCORED else None for part in score.verifier_scores)


def _unmasked_indices(config: RunConfig, group: SettledGroup, rewards: RewardGroup) -> tuple[int, ...]:
    """Returns the indices of the completions with a reward that no mask hides."""
    plays_episodes = group.prompt.environment is not None
    masks_truncated = config.grpo.mask_truncated_completions or (plays_episodes and config.episodes.truncated == "mask")
    return tuple(
        index
        for index, (reward, completion, score) in enumerate(
            zip(rewards.rewards, group.completions, group.scores, strict=True)
        )
        if reward is not None
        and not (masks_truncated and completion.finish_reason is FinishReason.LENGTH)
        and not (
            config.grpo.max_wrong_completion_tokens is not None
            and num_counted_tokens(completion) >= config.grpo.max_wrong_completion_tokens
            and is_correct(config.reward, score) is False
        )
    )
