from dataclasses import replace

import numpy as np
import pytest

from services.coordinator.reporting.rollout_metrics import rollout_metrics
from services.coordinator.rollout.groups import DropReason, SettledGroup
from services.coordinator.training.step_plan import plan_step
from shoal.rollout import Completion, FinishReason, GroundTruth
from shoal.scores import RewardPart, Score, ScoreOutcome, VerifierScore
from tests.support.groups import NOW, PROMPT, group_config, judged, settled_group

CONFIG = group_config()


def metrics_of(settled: list[SettledGroup]) -> dict[str, float]:
    groups = judged(CONFIG, settled)
    return rollout_metrics(CONFIG, groups, plan_step(CONFIG, groups, NOW, "step"))


def test_rates_are_over_the_completions_that_were_scored_or_sampled() -> None:
    groups = [
        settled_group(0, [1.0, 0.0]),
        settled_group(1, [None, 1.0]),
        settled_group(2, [], drop_reason=DropReason.TIMEOUT),
    ]
    metrics = metrics_of(groups)
    assert metrics["objective/verifiable_correct_rate"] == pytest.approx(2 / 3), "of 3 that were scored"
    assert metrics["val/unscored_rate"] == pytest.approx(1 / 4)
    assert metrics["val/truncated_rate"] == pytest.approx(1 / 2)
    assert metrics["other/real_batch_size_ratio"] == pytest.approx(1 / 2), "one group of two, of four completions"
    assert metrics["val/num_groups_dropped"] == 2
    assert (metrics["dropped/not_scored"], metrics["dropped/timeout"]) == (1, 1)


def test_each_part_of_the_reward_is_a_metric_and_they_sum_up_to_the_reward() -> None:
    parts = [
        {"verifiable": 10.0, "overlong": 0.0},
        {"verifiable": 10.0, "overlong": -0.5},
        {"verifiable": 0.0, "overlong": -0.25},
        {"verifiable": 99.0},  # Not scored, so no part of it counts.
        {"verifiable": 3.0, "format": 1.0},
    ]
    shares = [tuple(RewardPart(*item) for item in part.items()) for part in parts]
    groups = []
    for settled, rewards in (
        (settled_group(0, [10.0, 9.5, -0.25]), shares[:3]),
        (settled_group(1, [None, 4.0]), shares[3:]),
    ):
        scores = tuple(replace(score, parts=part) for score, part in zip(settled.scores, rewards, strict=True))
        groups.append(replace(settled, scores=scores))
    metrics = metrics_of(groups)
    found = {name: value for name, value in metrics.items() if name.startswith("reward/")}
    # Over the four that were scored; a part that one of them lacks is 0 there.
    wanted = {"reward/verifiable": 23 / 4, "reward/overlong": -0.75 / 4, "reward/format": 1 / 4}
    assert found == pytest.approx(wanted)
    assert sum(found.values()) == pytest.approx(metrics["objective/scores"])


def test_each_verifier_reports_its_durations_and_its_failures() -> None:
    def judgments(verifier: str, outcomes: str, seconds: list[float]) -> list[VerifierScore]:
        kinds = {"s": ScoreOutcome.SCORED, "u": ScoreOutcome.UNSCORABLE, "f": ScoreOutcome.FAILED}
        return [
            VerifierScore(verifier, kinds[kind], duration_s=time_s)
            for kind, time_s in zip(outcomes, seconds, strict=True)
        ]

    quick = judgments("gsm8k", "s" * 20, [0.001 * number for number in range(1, 21)])
    slow = judgments("code", "suffssssssssssssssss", [2.0, 4.0] * 10)
    scores = [Score(0, ScoreOutcome.SCORED, 0.0, pair) for pair in zip(quick, slow, strict=True)]
    metrics = metrics_of(
        [replace(settled_group(number, [1.0, 0.0]), scores=tuple(scores[2 * number :][:2])) for number in range(10)]
    )
    wanted = {
        "time/gsm8k_scoring": 0.0105,
        "time/gsm8k_scoring_p95": 0.019,
        "time/gsm8k_scoring_max": 0.02,
        "val/gsm8k_unscorable_rate": 0.0,
        "val/gsm8k_failed_rate": 0.0,
        "time/code_scoring": 3.0,
        "time/code_scoring_p95": 4.0,
        "time/code_scoring_max": 4.0,
        "val/code_unscorable_rate": 0.05,
        "val/code_failed_rate": 0.1,
    }
    assert {name: metrics[name] for name in wanted} == pytest.approx(wanted)


def test_groups_without_signal_are_counted_by_kind_and_advantages_are_weighted_by_token() -> None:
    truth = (GroundTruth("v", 1),)
    rewards = ([1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.5, 0.5])
    metrics = metrics_of(
        [
            replace(settled_group(number, values), prompt=replace(PROMPT, ground_truths=truth))
            for number, values in enumerate(rewards)
        ]
    )
    wanted = {
        "batch/filtered_prompts": 3,
        "batch/filtered_prompts_zero": 1,
        "batch/filtered_prompts_solved": 1,
        "batch/filtered_prompts_nonzero": 1,
        "batch/filtered_prompts_pct": 0.75,
        "batch/percent_solved_mean": 0.5,
        "val/total_reward_groups": 1,
        "val/advantages_mean": 0,
        "val/advantages_min": -0.5,
        "val/advantages_max": 0.5,
        "dropped/no_signal": 3,
    }
    assert {name: metrics[name] for name in wanted} == wanted


def answers(*given: tuple[FinishReason, float | None]) -> SettledGroup:
    """A group by how each completion ended and its format score; None: the format's verifier failed."""
    completions, scores = [], []
    for index, (reason, value) in enumerate(given):
        tokens = np.array([5, 6], np.int32)
        completions.append(Completion(index, tokens, np.zeros(2, np.float32), reason, (), seed=index))
        outcome = ScoreOutcome.FAILED if value is None else ScoreOutcome.SCORED
        scores.append(Score(index, outcome, 0.0, (VerifierScore("r1_format", outcome, value or 0.0),)))
    return SettledGroup(0, "g", PROMPT, "", tuple(completions), tuple(scores))


def test_stop_tokens_are_counted_and_format_scores_are_the_mean_of_the_scored_ones() -> None:
    stop, length = FinishReason.STOP, FinishReason.LENGTH
    groups = judged(CONFIG, [answers((stop, 1.0), (length, 0.0)), answers((stop, 1.0), (stop, None))])
    plan = plan_step(CONFIG, [], NOW, "step")
    metrics = rollout_metrics(CONFIG, groups, plan)
    assert metrics["val/num_stop_token_ids"] == 3.0
    assert metrics["val/format_scores"] == pytest.approx(2 / 3)
    without = rollout_metrics(CONFIG, [], plan)
    assert without["val/num_stop_token_ids"] == 0.0 and "val/format_scores" not in without
