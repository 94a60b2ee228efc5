"""What a settled group's scores amount to: rewards, and whether and what of it is trained on."""

from services.coordinator.sampling import SettledGroup
from shoal.config import RunConfig
from shoal.grpo.advantage import WITHIN_GROUP, RewardGroup, has_signal, weighted_sum
from shoal.rollout import FinishReason, Score, ScoreOutcome

CORRECT = 1.0
"""The value from which on a verifier calls a completion correct."""


def is_correct(score: Score) -> bool:
    """Whether every verifier calls a scored completion correct."""
    return all(part.value >= CORRECT for part in score.verifier_scores)


def correct_share(group: SettledGroup) -> float | None:
    """The share of correct completions among the scored ones; None when there is none."""
    scored = [score for score in group.scores if score.outcome is ScoreOutcome.SCORED]
    return sum(map(is_correct, scored)) / len(scored) if scored else None


def max_reward(config: RunConfig, group: SettledGroup) -> float:
    """The reward of a completion that every verifier calls correct and whose form is right, its length aside."""
    reward = config.reward
    paid = reward.verification_reward * sum(truth.weight for truth in group.prompt.ground_truths) * CORRECT
    if not reward.apply_verifiable_reward:
        paid = 0.0
    is_added = reward.format.mode == "add" or not reward.apply_verifiable_reward
    return paid + (reward.format.value if reward.format.kind != "none" and is_added else 0.0)


def reward_group(config: RunConfig, group: SettledGroup) -> RewardGroup:
    """The rewards of a group, by completion.

    A completion without a reward has None, never 0: an outage is no verdict. With `advantage.partial_rewards` the
    verifiers that did score make its reward.
    """
    weights = tuple(truth.weight for truth in group.prompt.ground_truths)
    parts = tuple(
        tuple(part.value if part.outcome is ScoreOutcome.SCORED else None for part in score.verifier_scores)
        for score in group.scores
    )
    partial = config.advantage.partial_rewards
    return RewardGroup(
        rewards=tuple(_reward(score, weights, partial=partial) for score in group.scores),
        parts=parts if config.advantage.per_verifier else (),
        part_weights=weights if config.advantage.per_verifier else (),
        num_tokens=tuple(completion.num_tokens for completion in group.completions),
        greedy_reward=_reward(group.greedy_score, weights, partial=partial) if group.greedy_score else None,
    )


def _reward(score: Score, weights: tuple[float, ...], *, partial: bool) -> float | None:
    if score.outcome is ScoreOutcome.SCORED:
        return score.reward
    if not partial:
        return None
    return weighted_sum(
        [part.value if part.outcome is ScoreOutcome.SCORED else None for part in score.verifier_scores], weights
    )


def drop_reason(config: RunConfig, group: SettledGroup) -> str:
    """Why a group is not trained on; empty when it is. Depends on the group alone."""
    if group.drop_reason:
        return group.drop_reason
    rewards = reward_group(config, group)
    num_needed = 2 if config.advantage.baseline in WITHIN_GROUP else 1
    num_scored = sum(reward is not None for reward in rewards.rewards)
    greedy_is_missing = config.advantage.baseline == "greedy" and rewards.greedy_reward is None
    if num_scored < num_needed or greedy_is_missing:
        return "not_scored"
    steps_differ = len({reward.value for rewards in group.step_rewards for reward in rewards}) > 1
    if not config.grpo.keep_zero_signal and not steps_differ and not has_signal(config.advantage, rewards):
        return "no_signal"
    share = correct_share(group)
    low, high = config.grpo.difficulty_low, config.grpo.difficulty_high
    if share is not None and low is not None and share <= low:
        return "too_hard"
    if share is not None and high is not None and share >= high:
        return "too_easy"
    return "" if trained_places(config, group) else "masked"


def trained_places(config: RunConfig, group: SettledGroup) -> list[int]:
    """Which completions of a group are trained on, if it is: those with a reward that no mask hides."""
    rewards = reward_group(config, group).rewards
    return [
        place
        for place, (reward, completion, score) in enumerate(zip(rewards, group.completions, group.scores, strict=True))
        if reward is not None
        and not (config.grpo.mask_truncated_completions and completion.finish_reason is FinishReason.LENGTH)
        and not (
            config.grpo.max_wrong_completion_tokens is not None
            and completion.num_tokens >= config.grpo.max_wrong_completion_tokens
            and not is_correct(score)
        )
    ]
