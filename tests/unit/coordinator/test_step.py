import numpy as np
import pytest

from services.coordinator.rollout_metrics import rollout_metrics
from services.coordinator.sampling import SettledGroup
from services.coordinator.step import plan_step
from shoal.config import RunConfig, parse_config
from shoal.rollout import (
    Completion,
    FinishReason,
    Prompt,
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
