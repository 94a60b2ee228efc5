"""What the completions of a step were like, by metric name; docs/metrics.md says what each means."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from services.coordinator.judgement import CORRECT, is_correct, max_reward, reward_group
from services.coordinator.sampling import SettledGroup
from services.coordinator.step import StepPlan
from shoal.config import RunConfig
from shoal.grpo.signal import solved_share, zero_signal_kind
from shoal.rollout import Completion, FinishReason, Rollout, Score, ScoreOutcome, VerifierScore


def rollout_metrics(config: RunConfig, groups: Sequence[SettledGroup], plan: StepPlan) -> dict[str, float]:
    """All of them, over the groups that a step used up, trained on or not."""
    return (
        _counts(groups, plan)
        | _signal(config, groups, plan)
        | _lengths(groups, plan)
        | _scores([score for group in groups for score in group.scores])
        | _verifiers([part for group in groups for score in group.scores for part in score.verifier_scores])
        | _advantages(plan)
        | _moments(config, plan)
    )


def _counts(groups: Sequence[SettledGroup], plan: StepPlan) -> dict[str, float]:
    ages = [group.staleness for group in plan.trained]
    scores = [score for group in groups for score in group.scores]
    num_scored = sum(score.outcome is ScoreOutcome.SCORED for score in scores)
    reasons = Counter(reason for _, reason in plan.dropped) + Counter(g.drop_reason for g in groups if g.drop_reason)
    return {
        "val/num_groups_dropped": float(len(groups) - len(plan.trained)),
        "val/total_reward_groups": float(len(plan.trained)),
        "val/unscored_rate": 1 - num_scored / len(scores) if scores else 0.0,
        "staleness/max": float(max(ages, default=0)),
        "staleness/mean": statistics.fmean(ages) if ages else 0.0,
    } | {f"dropped/{reason}": float(count) for reason, count in sorted(reasons.items())}


def _signal(config: RunConfig, groups: Sequence[SettledGroup], plan: StepPlan) -> dict[str, float]:
    """How many groups taught nothing because all their rewards were equal, and what those were."""
    kinds: Counter[str] = Counter()
    solved = []
    for group in groups:
        rewards = [reward for reward in reward_group(config, group).rewards if reward is not None]
        if rewards:
            kinds[zero_signal_kind(rewards, max_reward(config, group)) or "signal"] += 1
            solved.append(solved_share(rewards, max_reward(config, group)))
    num_zero_signal = kinds.total() - kinds["signal"]
    metrics = {
        "batch/filtered_prompts": float(num_zero_signal),
        "batch/filtered_prompts_zero": float(kinds["zero"]),
        "batch/filtered_prompts_solved": float(kinds["solved"]),
        "batch/filtered_prompts_nonzero": float(kinds["nonzero"]),
        "batch/filtered_prompts_pct": num_zero_signal / kinds.total() if kinds.total() else 0.0,
        "batch/refills": float(max(0, len(groups) - config.grpo.groups_per_step)),
    }
    if solved:
        metrics["batch/percent_solved_mean"] = statistics.fmean(solved)
    return metrics


def _lengths(groups: Sequence[SettledGroup], plan: StepPlan) -> dict[str, float]:
    pairs = [pair for group in groups for pair in zip(group.completions, group.scores, strict=True)]
    if not pairs:
        return {}
    completions = [completion for completion, _ in pairs]
    lengths = [completion.num_tokens for completion in completions]
    num_trained = sum(len(group.rollouts) for group in plan.batch.groups)
    metrics = {
        "val/sequence_lengths": statistics.fmean(lengths),
        "val/sequence_lengths_min": float(min(lengths)),
        "val/sequence_lengths_max": float(max(lengths)),
        "val/stop_token_rate": _share(c.finish_reason is FinishReason.STOP for c in completions),
        "val/truncated_rate": _share(c.finish_reason is FinishReason.LENGTH for c in completions),
        "other/real_batch_size_ratio": num_trained / len(completions),
    }
    for name, truth in (("solved", True), ("unsolved", False)):
        if chosen := [c.num_tokens for c, score in pairs if _is(score, truth)]:
            metrics[f"val/sequence_lengths_{name}"] = statistics.fmean(chosen)
    return metrics


def _is(score: Score, correct: bool) -> bool:
    return score.outcome is ScoreOutcome.SCORED and is_correct(score) is correct


def _scores(scores: Sequence[Score]) -> dict[str, float]:
    scored = [score for score in scores if score.outcome is ScoreOutcome.SCORED]
    if not scored:
        return {}
    rewards = [score.reward for score in scored]
    metrics = {
        "objective/scores": statistics.fmean(rewards),
        "objective/scores_mean": statistics.fmean(rewards),
        "objective/reward_std": statistics.pstdev(rewards),
        "objective/verifiable_correct_rate": _share(map(is_correct, scored)),
        "other/unsolved_batch_size_ratio": 1 - _share(map(is_correct, scored)),
    }
    by_part: dict[str, list[float]] = {}
    for score in scored:
        for share in score.parts:
            by_part.setdefault(share.name, []).append(share.value)
    # A part that a completion lacks is 0 there.
    metrics |= {f"reward/{name}": math.fsum(values) / len(scored) for name, values in sorted(by_part.items())}
    by_verifier: dict[str, list[float]] = {}
    for score in scored:
        for part in score.verifier_scores:
            by_verifier.setdefault(part.verifier, []).append(part.value)
    for verifier, values in sorted(by_verifier.items()):
        metrics[f"objective/{verifier}_reward"] = statistics.fmean(values)
        metrics[f"objective/{verifier}_correct_rate"] = _share(value >= CORRECT for value in values)
    return metrics


def _verifiers(parts: Iterable[VerifierScore]) -> dict[str, float]:
    """How long each verifier took, and what it could not judge, over all that it was asked."""
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
    """Over the tokens that are trained on, as their advantages go to the learner."""
    total, num_tokens, least, most = 0.0, 0, float("inf"), float("-inf")
    weights = []
    for group in plan.trained:
        for rollout in group.rollouts:
            weights.append(rollout.weight)
            if not (count := _num_counting(rollout.completion)):
                continue
            total += rollout.advantage * count
            num_tokens += count
            low, high = _range(rollout)
            least, most = min(least, low), max(most, high)
    if not num_tokens:
        return {}
    return {
        "val/advantages_mean": total / num_tokens,
        "val/advantages_min": least,
        "val/advantages_max": most,
        "val/completion_weight_max": max(weights),
    }


def _moments(config: RunConfig, plan: StepPlan) -> dict[str, float]:
    """What rewards are compared with, where that is all rewards so far."""
    if not config.advantage.is_running:
        return {}
    std = plan.moments.std(config.advantage.std_ddof)
    return {"objective/running_reward_mean": plan.moments.mean, "objective/running_reward_std": std}


def _range(rollout: Rollout) -> tuple[float, float]:
    """Least and largest advantage of the tokens that count, of which there is one at least."""
    if rollout.token_advantages is None:
        return rollout.advantage, rollout.advantage
    mask = rollout.completion.loss_mask
    values = rollout.token_advantages if mask is None else rollout.token_advantages[mask]
    return float(values.min()), float(values.max())


def _num_counting(completion: Completion) -> int:
    return completion.num_tokens if completion.loss_mask is None else int(completion.loss_mask.sum())


def _share(truths: Iterable[bool]) -> float:
    values = list(truths)
    return sum(values) / len(values)
