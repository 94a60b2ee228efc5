from dataclasses import replace

import numpy as np
import pytest

from services.coordinator.judgement import drop_reason
from services.coordinator.rollout_metrics import rollout_metrics
from services.coordinator.sampling import SettledGroup
from services.coordinator.step import StepPlan, plan_step
from shoal.config import RunConfig, parse_config
from shoal.rollout import (
    Completion,
    FinishReason,
    GroundTruth,
    Prompt,
    RewardPart,
    Score,
    ScoreOutcome,
    VerifierScore,
    VersionSpan,
    WeightVersion,
)

CONFIG: RunConfig = parse_config(
    {"model": {"path": "m"}, "data": {"sources": [{"path": "d"}]}, "advantage": {"scale": "none"}}
)
PROMPT = Prompt("p:0", np.array([1, 2], np.int32), "?", ())
NOW = WeightVersion(0, 7)


def group(order_number: int, rewards: list[float | None], oldest: int = 7, drop_reason: str = "") -> SettledGroup:
    """A group whose completions earned these rewards; None stands for a verifier that failed."""
    completions = tuple(
        Completion(
            sample_index=index,
            token_ids=np.array([3, 4], np.int32),
            behavior_logprobs=np.array([-1, -1], np.float32),
            finish_reason=FinishReason.STOP if index else FinishReason.LENGTH,
            version_spans=(VersionSpan(WeightVersion(0, oldest), 0, 1), VersionSpan(NOW, 1, 2)),
            seed=0,
        )
        for index in range(len(rewards))
    )
    scores = []
    for index, reward in enumerate(rewards):
        outcome = ScoreOutcome.FAILED if reward is None else ScoreOutcome.SCORED
        scores.append(Score(index, outcome, reward or 0.0, (VerifierScore("v", outcome, reward or 0.0),)))
    return SettledGroup(
        order_number, f"g{order_number}", PROMPT, "", completions, tuple(scores), drop_reason=drop_reason
    )


def test_a_failed_verifier_leaves_its_completion_out_and_its_siblings_in() -> None:
    plan = plan_step(CONFIG, [group(0, [1.0, None, 0.0])], NOW, "step")
    (train_group,) = plan.batch.groups
    assert [rollout.completion.sample_index for rollout in train_group.rollouts] == [0, 2]
    assert [rollout.advantage for rollout in train_group.rollouts] == [0.5, -0.5]
    assert [(group.order_number, group.staleness) for group in plan.trained] == [(0, 0)]
    assert [rollout.reward for rollout in plan.trained[0].rollouts] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("rewards", "reason"), [([1.0, 1.0], "no_signal"), ([1.0, None], "not_scored"), ([None, None], "not_scored")]
)
def test_groups_that_would_change_nothing_are_left_out_with_the_reason(
    rewards: list[float | None], reason: str
) -> None:
    plan = plan_step(CONFIG, [group(4, rewards), group(5, [0.0, 1.0])], NOW, "step")
    assert plan.dropped == ((4, reason),)
    assert [train_group.group_id for train_group in plan.batch.groups] == ["g5"]


def test_staleness_counts_from_the_oldest_token() -> None:
    plan = plan_step(CONFIG, [group(0, [0.0, 1.0], oldest=5)], NOW, "step")
    assert plan.trained[0].staleness == 2


def test_a_version_of_another_attempt_is_never_trained_on() -> None:
    with pytest.raises(ValueError, match="attempt"):
        plan_step(CONFIG, [group(0, [0.0, 1.0])], WeightVersion(1, 7), "step")


def test_rates_are_over_what_was_scored_and_sampled() -> None:
    groups = [group(0, [1.0, 0.0]), group(1, [None, 1.0]), group(2, [], drop_reason="timeout")]
    plan = plan_step(CONFIG, groups, NOW, "step")
    metrics = rollout_metrics(CONFIG, groups, plan)
    assert metrics["objective/verifiable_correct_rate"] == pytest.approx(2 / 3), "of 3 that were scored"
    assert metrics["val/unscored_rate"] == pytest.approx(1 / 4)
    assert metrics["val/truncated_rate"] == pytest.approx(1 / 2)
    assert metrics["other/real_batch_size_ratio"] == pytest.approx(1 / 2), "one group of two, of four completions"
    assert metrics["val/num_groups_dropped"] == 2


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
    for one, given in ((group(0, [10.0, 9.5, -0.25]), shares[:3]), (group(1, [None, 4.0]), shares[3:])):
        scores = tuple(replace(score, parts=part) for score, part in zip(one.scores, given, strict=True))
        groups.append(replace(one, scores=scores))
    got = rollout_metrics(CONFIG, groups, plan_step(CONFIG, groups, NOW, "step"))
    found = {name: value for name, value in got.items() if name.startswith("reward/")}
    # Over the four that were scored; a part that one of them lacks is 0 there.
    wanted = {"reward/verifiable": 23 / 4, "reward/overlong": -0.75 / 4, "reward/format": 1 / 4}
    assert found == pytest.approx(wanted)
    assert sum(found.values()) == pytest.approx(got["objective/scores"])


def test_each_verifier_tells_how_long_it_took_and_how_often_it_could_not_judge() -> None:
    def judged(verifier: str, outcomes: str, seconds: list[float]) -> list[VerifierScore]:
        kinds = {"s": ScoreOutcome.SCORED, "u": ScoreOutcome.UNSCORABLE, "f": ScoreOutcome.FAILED}
        return [
            VerifierScore(verifier, kinds[kind], duration_s=time_s)
            for kind, time_s in zip(outcomes, seconds, strict=True)
        ]

    quick = judged("gsm8k", "s" * 20, [0.001 * number for number in range(1, 21)])
    slow = judged("code", "suffssssssssssssssss", [2.0, 4.0] * 10)
    scores = [Score(0, ScoreOutcome.SCORED, 0.0, pair) for pair in zip(quick, slow, strict=True)]
    settled = replace(group(0, [1.0, 0.0]), scores=tuple(scores[:2]))
    more = [replace(group(number, [1.0, 0.0]), scores=tuple(scores[2 * number :][:2])) for number in range(1, 10)]
    got = rollout_metrics(CONFIG, [settled, *more], plan_step(CONFIG, [settled, *more], NOW, "step"))
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
    assert {name: got[name] for name in wanted} == pytest.approx(wanted)


def plan_of(groups: list[SettledGroup], **sections: dict[str, object]) -> StepPlan:
    """The step's plan under other settings."""
    values = {"model": {"path": "m"}, "data": {"sources": [{"path": "d"}]}, "advantage": {"scale": "none"}}
    return plan_step(parse_config(values | sections), groups, NOW, "step")


def advantages(plan: StepPlan) -> list[list[float]]:
    return [[rollout.advantage for rollout in group.rollouts] for group in plan.trained]


def lengths(group: SettledGroup, num_tokens: list[int]) -> SettledGroup:
    """The group with completions of other lengths."""
    completions = [
        replace(
            completion,
            token_ids=np.arange(count, dtype=np.int32),
            behavior_logprobs=np.zeros(count, np.float32),
            version_spans=(VersionSpan(NOW, 0, count),),
        )
        for completion, count in zip(group.completions, num_tokens, strict=True)
    ]
    return replace(group, completions=tuple(completions))


def test_truncated_completions_are_compared_with_and_not_trained_on() -> None:
    # The first completion of a group ran into its limit here.
    plan = plan_of([group(0, [1.0, 0.0, 0.5])], grpo={"mask_truncated_completions": True})
    assert [rollout.completion.sample_index for rollout in plan.trained[0].rollouts] == [1, 2]
    assert advantages(plan) == [[-0.5, 0.0]], "the mean is over all three"


def test_a_group_of_which_nothing_is_left_is_dropped() -> None:
    only_first = replace(group(0, [1.0, 0.0]), completions=(group(0, [1.0]).completions[0],) * 2)
    plan = plan_of([only_first, group(1, [0.0, 1.0])], grpo={"mask_truncated_completions": True})
    assert plan.dropped == ((0, "masked"),)


def test_wrong_completions_beyond_a_length_are_not_trained_on() -> None:
    plan = plan_of([lengths(group(0, [1.0, 0.0, 0.0]), [9, 9, 3])], grpo={"max_wrong_completion_tokens": 9})
    assert [rollout.completion.sample_index for rollout in plan.trained[0].rollouts] == [0, 2]


@pytest.mark.parametrize(
    ("rewards", "reason"), [([1.0, 1.0, 0.0], "too_easy"), ([1.0, 0.0, 0.0], "too_hard"), ([1.0, 0.0], "")]
)
def test_groups_outside_the_wanted_difficulty_are_dropped(rewards: list[float | None], reason: str) -> None:
    plan = plan_of([group(3, rewards)], grpo={"difficulty_low": 0.4, "difficulty_high": 0.6})
    assert plan.dropped == (((3, reason),) if reason else ())


def test_groups_without_a_signal_are_trained_on_if_asked() -> None:
    plan = plan_of([group(0, [1.0, 1.0]), group(1, [None, None])], grpo={"keep_zero_signal": True})
    assert advantages(plan) == [[0.0, 0.0]] and plan.dropped == ((1, "not_scored"),)


def test_harder_prompts_weigh_more_and_the_mean_weight_is_1() -> None:
    groups = [group(0, [1.0, 1.0, 0.0, 1.0]), group(1, [1.0, 0.0, 0.0, 0.0])]
    plan = plan_of(groups, loss={"difficulty_weight": True})
    weights = [rollout.weight for trained in plan.trained for rollout in trained.rollouts]
    easy, hard = 0.5 + 1.5 / 4, 0.5 + 1.5 * 3 / 4
    mean = (easy + hard) / 2
    assert weights == pytest.approx([easy / mean] * 4 + [hard / mean] * 4)


def test_shorter_completions_weigh_more_and_the_mean_weight_is_1() -> None:
    plan = plan_of([lengths(group(0, [1.0, 0.0, 0.0]), [10, 20, 30])], loss={"length_weight": True})
    assert [rollout.weight for rollout in plan.trained[0].rollouts] == pytest.approx([1.5, 1.0, 0.5])


def test_verifiers_that_scored_make_the_reward_if_asked() -> None:
    truths = (GroundTruth("a", 1, 1.0), GroundTruth("b", 1, 0.5))

    def score(index: int, first: float, second: float | None) -> Score:
        outcome = ScoreOutcome.SCORED if second is not None else ScoreOutcome.FAILED
        parts = (VerifierScore("a", ScoreOutcome.SCORED, first), VerifierScore("b", outcome, second or 0.0))
        return Score(index, outcome, first + 0.5 * (second or 0.0), parts)

    settled = replace(
        group(0, [0.0, 0.0]),
        prompt=replace(PROMPT, ground_truths=truths),
        scores=(score(0, 1.0, None), score(1, 1.0, 1.0)),
    )
    assert plan_of([settled]).dropped == ((0, "not_scored"),)
    plan = plan_of([settled], advantage={"scale": "none", "partial_rewards": True})
    assert [rollout.reward for rollout in plan.trained[0].rollouts] == [1.0, 1.5]
    by_verifier = plan_of([settled], advantage={"scale": "none", "per_verifier": True, "partial_rewards": True})
    # One value of the second verifier is nothing to compare with; the first one's are equal.
    assert by_verifier.dropped == ((0, "no_signal"),)


def test_statistics_of_the_batch_know_the_groups_that_are_dropped() -> None:
    groups = [group(0, [1.0, 0.0]), group(1, [1.0, 1.0])]
    plan = plan_of(groups, advantage={"scale": "batch_std", "std_ddof": 0, "std_eps": 0.0})
    assert advantages(plan) == [[pytest.approx(0.5 / np.sqrt(3 / 16)), pytest.approx(-0.5 / np.sqrt(3 / 16))]]


def test_normalizing_over_the_batch_is_over_what_is_trained_on() -> None:
    groups = [group(0, [2.0, 0.0]), group(1, [1.0, 1.0])]
    plan = plan_of(groups, advantage={"scale": "none", "batch_normalize": True, "batch_std_eps": 0.0})
    assert advantages(plan) == [[pytest.approx(1 / np.sqrt(2)), pytest.approx(-1 / np.sqrt(2))]]


def test_whitened_advantages_have_mean_0_over_the_tokens_that_count() -> None:
    groups = [lengths(group(0, [1.0, 0.0]), [1, 3])]
    plan = plan_of(groups, advantage={"scale": "none", "whiten": True, "whiten_ddof": 0, "whiten_eps": 0.0})
    first, second = plan.trained[0].rollouts
    assert first.token_advantages is None, "all tokens are worth the same"
    assert first.advantage + 3 * second.advantage == pytest.approx(0.0)
    assert (first.advantage**2 + 3 * second.advantage**2) / 4 == pytest.approx(1.0)


def test_discounted_advantages_stand_at_their_tokens() -> None:
    plan = plan_of([lengths(group(0, [1.0, 0.0]), [3, 2])], advantage={"scale": "none", "discount": 0.5})
    first, second = plan.trained[0].rollouts
    assert first.token_advantages is not None and first.token_advantages.tolist() == [0.125, 0.25, 0.5]
    assert second.token_advantages is not None and second.token_advantages.tolist() == [-0.25, -0.5]


def test_metrics_tell_groups_without_signal_by_kind_and_advantages_by_token() -> None:
    truth = (GroundTruth("v", 1),)
    groups = [
        replace(settled, prompt=replace(PROMPT, ground_truths=truth))
        for settled in (group(0, [1.0, 0.0]), group(1, [1.0, 1.0]), group(2, [0.0, 0.0]), group(3, [0.5, 0.5]))
    ]
    plan = plan_of(groups)
    got = rollout_metrics(CONFIG, groups, plan)
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
    assert {name: got[name] for name in wanted} == wanted


@pytest.mark.parametrize("baseline", ["batch_mean", "none", "greedy"])
def test_equal_rewards_are_a_signal_where_nothing_is_compared_within_the_group(baseline: str) -> None:
    config = parse_config(
        {
            "model": {"path": "m"},
            "data": {"sources": [{"path": "d"}]},
            "advantage": {"baseline": baseline, "scale": "none"},
        }
    )
    greedy = Score(0, ScoreOutcome.SCORED, 0.0, ())
    assert drop_reason(config, replace(group(0, [1.0, 1.0]), greedy_score=greedy)) == ""
