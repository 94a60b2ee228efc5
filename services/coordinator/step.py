"""What a train step is taken over, and what is reported of it."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.coordinator.sampling import SettledGroup
from shoal.config import RunConfig
from shoal.grpo.advantage import group_advantages, has_signal
from shoal.grpo.staleness import staleness
from shoal.rollout import FinishReason, Rollout, Score, ScoreOutcome, TrainBatch, TrainGroup, WeightVersion

CORRECT = 1.0
"""The value from which on a verifier calls a completion correct."""


@dataclass(frozen=True)
class StepPlan:
    """The groups of one step, sorted into those that are trained on and those that are not."""

    batch: TrainBatch
    trained: tuple[tuple[int, int, tuple[float | None, ...]], ...]
    """Order number, staleness and advantages of each group that is trained on."""
    dropped: tuple[tuple[int, str], ...]
    """Order number and reason of each group that is not. Groups dropped earlier are not repeated here."""


def plan_step(
    config: RunConfig, groups: Sequence[SettledGroup], version: WeightVersion, train_step_id: str
) -> StepPlan:
    """Computes the advantages, and leaves out groups that would change nothing.

    Within a group, completions without a reward are left out: an outage is never a reward of 0.
    """
    train_groups, trained, dropped = [], [], []
    for group in groups:
        if group.drop_reason:
            continue
        rewards = [score.reward if score.outcome is ScoreOutcome.SCORED else None for score in group.scores]
        advantages = group_advantages(
            rewards,
            scale=config.grpo.advantage_scale,
            std_ddof=config.grpo.advantage_std_ddof,
            std_eps=config.grpo.advantage_std_eps,
        )
        if not has_signal(advantages):
            scored = sum(reward is not None for reward in rewards)
            dropped.append((group.order_number, "no_signal" if scored > 1 else "not_scored"))
            continue
        rollouts = tuple(
            Rollout(completion, advantage)
            for completion, advantage in zip(group.completions, advantages, strict=True)
            if advantage is not None
        )
        age = staleness(version, (rollout.completion.oldest_version for rollout in rollouts))
        train_groups.append(TrainGroup(group.group_id, group.prompt.token_ids, rollouts, group.traceparent))
        trained.append((group.order_number, age, tuple(advantages)))
    batch = TrainBatch(train_step_id, version, config.sampling.temperature, tuple(train_groups))
    return StepPlan(batch, tuple(trained), tuple(dropped))


def rollout_metrics(groups: Sequence[SettledGroup], plan: StepPlan) -> dict[str, float]:
    """What the completions of a step were like, by metric name; docs/metrics.md says what each means."""
    completions = [completion for group in groups for completion in group.completions]
    scores = [score for group in groups for score in group.scores]
    scored = [score for score in scores if score.outcome is ScoreOutcome.SCORED]
    metrics = {
        "val/num_groups_dropped": float(len(groups) - len(plan.trained)),
        "val/unscored_rate": 1 - len(scored) / len(scores) if scores else 0.0,
        "staleness/max": float(max((age for _, age, _ in plan.trained), default=0)),
        "staleness/mean": statistics.fmean(age for _, age, _ in plan.trained) if plan.trained else 0.0,
    }
    if completions:
        num_trained = sum(len(group.rollouts) for group in plan.batch.groups)
        metrics |= {
            "val/sequence_lengths": statistics.fmean(completion.num_tokens for completion in completions),
            "val/sequence_lengths_max": float(max(completion.num_tokens for completion in completions)),
            "val/stop_token_rate": _share(c.finish_reason is FinishReason.STOP for c in completions),
            "val/truncated_rate": _share(c.finish_reason is FinishReason.LENGTH for c in completions),
            "other/real_batch_size_ratio": num_trained / len(completions),
        }
    if scored:
        rewards = [score.reward for score in scored]
        correct = [is_correct(score) for score in scored]
        metrics |= {
            "objective/scores": statistics.fmean(rewards),
            "objective/scores_mean": statistics.fmean(rewards),
            "objective/reward_std": statistics.pstdev(rewards),
            "objective/verifiable_correct_rate": _share(correct),
        }
        by_verifier: dict[str, list[float]] = {}
        for score in scored:
            for part in score.verifier_scores:
                by_verifier.setdefault(part.verifier, []).append(part.value)
        for verifier, values in sorted(by_verifier.items()):
            metrics[f"objective/{verifier}_reward"] = statistics.fmean(values)
            metrics[f"objective/{verifier}_correct_rate"] = _share(value >= CORRECT for value in values)
    return metrics


def is_correct(score: Score) -> bool:
    """Whether every verifier calls a scored completion correct."""
    return all(part.value >= CORRECT for part in score.verifier_scores)


def _share(truths: Iterable[bool]) -> float:
    values = list(truths)
    return sum(values) / len(values)
