"""Metrics of a step's completions, by metric name; docs/metrics.md gives the meaning of each."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from services.coordinator.rollout.episodes.metrics import episode_metrics, played
from services.coordinator.rollout.evaluation.result import mean_parts
from services.coordinator.rollout.groups import JudgedGroup, counted_tokens
from services.coordinator.training.step_plan import StepPlan
from shoal.config import RunConfig
from shoal.config.tables.reward import RewardConfig
from shoal.grpo.correctness import CORRECT, is_correct
from shoal.grpo.signal import solved_share, zero_signal_kind
from shoal.rollout import FinishReason, Rollout
from shoal.scores import Score, ScoreOutcome, VerifierScore

FORMAT_VERIFIER = "r1_format"
"""The verifier whose value is the format score of `val/format_scores`."""


def rollout_metrics(config: RunConfig, groups: Sequence[JudgedGroup], plan: StepPlan) -> dict[str, float]:
    """Computes all metrics of the groups that a step used up, whether they are trained on or not."""
    scores = [score for group in groups for score in group.settled.scores]
    return (
        _counts(groups, plan)
        | _signal(config, groups)
        | _lengths(config.reward, groups, plan)
        | _scores(config.reward, scores)
        | _verifiers([part for score in scores for part in score.verifier_scores])
        | _advantages(plan)
        | _moments(config, plan)
        | episode_metrics(played((group.settled.prompt, group.settled.completions) for group in groups))
    )


def _counts(groups: Sequence[JudgedGroup], plan: StepPlan) -> dict[str, float]:
    ages = [group.staleness for group in plan.trained]
    scores = [score for group in groups for score in group.settled.scores]
    num_scored = sum(score.outcome is ScoreOutcome.SCORED for score in scores)
    reasons = Counter(group.drop_reason for group in groups if group.drop_reason)
    return {
        "val/num_groups_dropped": float(len(groups) - len(plan.trained)),
        "val/total_reward_groups": float(len(plan.trained)),
        "val/unscored_rate": 1 - num_scored / len(scores) if scores else 0.0,
        "staleness/max": float(max(ages, default=0)),
        "staleness/mean": statistics.fmean(ages) if ages else 0.0,
    } | {f"dropped/{reason}": float(count) for reason, count in sorted(reasons.items())}


def _signal(config: RunConfig, groups: Sequence[JudgedGroup]) -> dict[str, float]:
    """Counts the groups with equal rewards, by the kind of the reward."""
    kinds: Counter[str] = Counter()
    solved = []
    for group in groups:
        rewards = [reward for reward in group.rewards.rewards if reward is not None]
        if rewards:
            kinds[zero_signal_kind(rewards, group.max_reward) or "signal"] += 1
            solved.append(solved_share(rewards, group.max_reward))
    num_zero_signal = kinds.total() - kinds["signal"]
    metrics = {
        "batch/filtered_prompts": float(num_zero_signal),
        "batch/filtered_prompts_zero": float(kinds["zero"]),
        "batch/filtered_prompts_solved": float(kinds["solved"]),
        "batch/filtered_prompts_nonzero": float(kinds["nonzero"]),
        "batch/filtered_prompts_pct": num_zero_signal / kinds.total() if kinds.total() else 0.0,
        "batch/all_wrong_prompts": float(sum(group.learns_from_shaping_alone for group in groups)),
        "batch/refills": float(max(0, len(groups) - config.grpo.groups_per_step)),
    }
    if solved:
        metrics["batch/percent_solved_mean"] = statistics.fmean(solved)
    return metrics


def _lengths(reward: RewardConfig, groups: Sequence[JudgedGroup], plan: StepPlan) -> dict[str, float]:
    pairs = [pair for group in groups for pair in zip(group.settled.completions, group.settled.scores, strict=True)]
    completions = [completion for completion, _ in pairs]
    num_stopped = sum(completion.finish_reason is FinishReason.STOP for completion in completions)
    metrics = {"val/num_stop_token_ids": float(num_stopped)}
    if not completions:
        return metrics
    lengths = [completion.num_tokens for completion in completions]
    num_trained = sum(len(group.rollouts) for group in plan.batch.groups)
    metrics |= {
        "val/sequence_lengths": statistics.fmean(lengths),
        "val/sequence_lengths_min": float(min(lengths)),
        "val/sequence_lengths_max": float(max(lengths)),
        "val/stop_token_rate": num_stopped / len(completions),
        "val/truncated_rate": _share(c.finish_reason is FinishReason.LENGTH for c in completions),
        "other/real_batch_size_ratio": num_trained / len(completions),
    }
    for name, truth in (("solved", True), ("unsolved", False)):
        if chosen := [c.num_tokens for c, score in pairs if _is(reward, score, truth)]:
            metrics[f"val/sequence_lengths_{name}"] = statistics.fmean(chosen)
    return metrics


def _is(reward: RewardConfig, score: Score, correct: bool) -> bool:
    return score.outcome is ScoreOutcome.SCORED and is_correct(reward, score) is correct


def _scores(reward: RewardConfig, scores: Sequence[Score]) -> dict[str, float]:
    metrics = {}
    formats = [
        part.value
        for score in scores
        for part in score.verifier_scores
        if part.verifier == FORMAT_VERIFIER and part.outcome is ScoreOutcome.SCORED
    ]
    if formats:
        metrics["val/format_scores"] = statistics.fmean(formats)
    scored = [score for score in scores if score.outcome is ScoreOutcome.SCORED]
    if not scored:
        return metrics
    rewards = [score.reward for score in scored]
    metrics |= {
        "objective/scores": statistics.fmean(rewards),
        "objective/scores_mean": statistics.fmean(rewards),
        "objective/reward_std": statistics.pstdev(rewards),
    }
    if verdicts := [verdict for score in scored if (verdict := is_correct(reward, score)) is not None]:
        metrics["objective/verifiable_correct_rate"] = _share(verdicts)
        metrics["other/unsolved_batch_size_ratio"] = 1 - _share(verdicts)
    metrics |= mean_parts("reward/", scored)
    by_verifier: dict[str, list[float]] = {}
    for score in scored:
        for part in score.verifier_scores:
            by_verifier.setdefault(part.verifier, []).append(part.value)
    for verifier, values in sorted(by_verifier.items()):
        metrics[f"objective/{verifier}_reward"] = statistics.fmean(values)
        metrics[f"objective/{verifier}_correct_rate"] = _share(value >= CORRECT for value in values)
    return metrics


def _verifiers(parts: Iterable[VerifierScore]) -> dict[str, float]:
    """Computes the durations and failures of each verifier, over all completions that it was asked to judge."""
    by_verifier: dict[str, list[VerifierScore]] = {}
    for part in parts:
        by_verifier.setdefault(part.verifier, []).append(part)
    metrics = {}
    for verifier, judged in sorted(by_verifier.items()):
        seconds = sorted(part.duration_s for part in judged)
        metrics[f"time/{verifier}_scoring"] = statistics.fmean(seconds)
        metrics[f"time/{verifier}_scoring_p95"] = seconds[math.ceil(0.95 * len(seconds)) - 1]
        metrics[f"time/{verifier}_scoring_max"] = seconds[-1]
        metrics[f"val/{verifier}_unscorable_rate"] = _share(part.outcome is ScoreOutcome.UNSCORABLE for part in judged)
        metrics[f"val/{verifier}_failed_rate"] = _share(part.outcome is ScoreOutcome.FAILED for part in judged)
    return metrics


def _advantages(plan: StepPlan) -> dict[str, float]:
    """Computes statistics of the advantages of trained tokens, as the learner gets them."""
    total, num_tokens, lowest, highest = 0.0, 0, float("inf"), float("-inf")
    weights = []
    for group in plan.trained:
        for rollout in group.rollouts:
            weights.append(rollout.weight)
            if not (count := int(counted_tokens(rollout.completion).sum())):
                continue
            total += rollout.advantage * count
            num_tokens += count
            low, high = _advantage_range(rollout)
            lowest, highest = min(lowest, low), max(highest, high)
    if not num_tokens:
        return {}
    return {
        "val/advantages_mean": total / num_tokens,
        "val/advantages_min": lowest,
        "val/advantages_max": highest,
        "val/completion_weight_max": max(weights),
    }


def _moments(config: RunConfig, plan: StepPlan) -> dict[str, float]:
    """Returns the statistics with which rewards are compared, if the statistics cover all rewards of the run so far."""
    if not config.advantage.is_running:
        return {}
    std = plan.moments.std(config.advantage.std_ddof)
    return {"objective/running_reward_mean": plan.moments.mean, "objective/running_reward_std": std}


def _advantage_range(rollout: Rollout) -> tuple[float, float]:
    """Returns the smallest and largest advantage of the counted tokens. There must be at least one such token."""
    if rollout.token_advantages is None:
        return rollout.advantage, rollout.advantage
    values = rollout.token_advantages[counted_tokens(rollout.completion)]
    return float(values.min()), float(values.max())


def _share(truths: Iterable[bool]) -> float:
    values = list(truths)
    return sum(values) / len(values)
