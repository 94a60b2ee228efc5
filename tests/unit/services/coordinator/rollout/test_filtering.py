from dataclasses import replace

import numpy as np
import pytest

from services.coordinator.rollout.filtering import judge_group
from services.coordinator.rollout.groups import DropReason, SettledGroup, TokenReward
from shoal.rollout import GroundTruth
from shoal.scores import RewardPart, Score, ScoreOutcome, VerifierScore
from tests.support.groups import PROMPT, group_config, settled_group, with_lengths

CONFIG = group_config()


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([1.0, 0.0], None),
        ([1.0, 1.0], DropReason.NO_SIGNAL),
        ([1.0, None], DropReason.NOT_SCORED),
        ([None, None], DropReason.NOT_SCORED),
    ],
)
def test_groups_that_would_change_nothing_are_dropped_with_the_reason(
    rewards: list[float | None], reason: DropReason | None
) -> None:
    group = judge_group(CONFIG, settled_group(4, rewards))
    assert group.drop_reason is reason and group.is_trained is (reason is None)


def test_a_group_that_was_dropped_before_it_was_scored_keeps_its_reason() -> None:
    group = judge_group(CONFIG, settled_group(0, [], drop_reason=DropReason.TIMEOUT))
    assert (group.drop_reason, group.trained_indices, group.correct_share) == (DropReason.TIMEOUT, (), None)


def test_a_failed_verifier_leaves_its_completion_out_and_its_siblings_in() -> None:
    group = judge_group(CONFIG, settled_group(0, [1.0, None, 0.0]))
    assert group.rewards.rewards == (1.0, None, 0.0), "a failure is never a reward of 0"
    assert group.trained_indices == (0, 2)
    assert group.correct_share == 0.5, "of the two that were scored"


def test_a_group_without_an_unmasked_completion_is_dropped() -> None:
    cut_off = replace(settled_group(0, [1.0, 0.0]), completions=(settled_group(0, [1.0]).completions[0],) * 2)
    group = judge_group(group_config(grpo={"mask_truncated_completions": True}), cut_off)
    assert (group.drop_reason, group.trained_indices) == (DropReason.MASKED, ())


def test_wrong_completions_from_a_length_on_are_not_trained_on() -> None:
    config = group_config(grpo={"max_wrong_completion_tokens": 9})
    settled = with_lengths(settled_group(0, [1.0, 0.0, 0.0]), [9, 9, 3])
    assert judge_group(config, settled).trained_indices == (0, 2)
    first, wrong, last = settled.completions
    played = replace(wrong, loss_mask=np.arange(9) != 4)
    group = judge_group(config, replace(settled, completions=(first, played, last)))
    assert group.trained_indices == (0, 1, 2), "the environment has said one of the tokens"


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [([1.0, 1.0, 0.0], DropReason.TOO_EASY), ([1.0, 0.0, 0.0], DropReason.TOO_HARD), ([1.0, 0.0], None)],
)
def test_groups_outside_the_configured_difficulty_are_dropped(
    rewards: list[float | None], reason: DropReason | None
) -> None:
    config = group_config(grpo={"difficulty_low": 0.4, "difficulty_high": 0.6})
    assert judge_group(config, settled_group(3, rewards)).drop_reason is reason


def combined(*verdicts: tuple[float, float], verifiers: tuple[str, str] = ("gsm8k", "soft_overlong")) -> SettledGroup:
    scores = tuple(
        Score(
            index,
            ScoreOutcome.SCORED,
            sum(values),
            tuple(VerifierScore(*pair) for pair in zip(verifiers, [ScoreOutcome.SCORED] * 2, values, strict=True)),
        )
        for index, values in enumerate(verdicts)
    )
    truths = tuple(GroundTruth(name, "5") for name in verifiers)
    return replace(settled_group(0, [0.0] * len(scores)), prompt=replace(PROMPT, ground_truths=truths), scores=scores)


def test_a_penalty_beside_a_verifier_leaves_the_share_of_correct_completions_alone() -> None:
    solved = combined((1.0, 0.0), (1.0, -0.5))
    group = judge_group(group_config(grpo={"difficulty_low": 0}), solved)
    assert (group.correct_share, group.drop_reason, group.max_reward) == (1.0, None, 1.0)
    easy = judge_group(group_config(grpo={"difficulty_high": 1}), solved)
    assert easy.drop_reason is DropReason.TOO_EASY
    named = judge_group(
        group_config(reward={"correct": ["gsm8k"]}), combined((1.0, 0.2), (1.0, 0.4), verifiers=("gsm8k", "brevity"))
    )
    assert named.correct_share == 1.0


@pytest.mark.parametrize(
    ("verdicts", "by_correct", "from_shaping"),
    [
        ([(0.0, 0.0), (0.0, -0.5)], DropReason.EQUAL_VERDICTS, True),
        ([(1.0, 0.0), (1.0, -0.5)], DropReason.EQUAL_VERDICTS, False),
        ([(1.0, 0.0), (0.0, -0.5)], None, False),
        ([(0.25, 0.0), (0.5, -0.5)], None, False),  # Shares of the tests, for example, differ.
        ([(0.0, -0.5), (0.0, -0.5)], DropReason.NO_SIGNAL, False),
    ],
)
def test_groups_that_shaping_alone_tells_apart_are_counted_and_left_out_on_demand(
    verdicts: list[tuple[float, float]], by_correct: DropReason | None, from_shaping: bool
) -> None:
    settled = combined(*verdicts)
    group, zero_signal = judge_group(CONFIG, settled), by_correct is DropReason.NO_SIGNAL
    assert (group.is_trained, group.learns_from_shaping_alone) == (not zero_signal, from_shaping)
    filtered = judge_group(group_config(grpo={"filter_groups_by": "correct"}), settled)
    assert (filtered.drop_reason, filtered.learns_from_shaping_alone) == (by_correct, False)
    if from_shaping:
        hard = judge_group(group_config(grpo={"difficulty_low": 0}), settled)
        assert hard.drop_reason is DropReason.TOO_HARD


def test_a_filter_by_what_is_correct_keeps_groups_of_which_nobody_says_it_and_those_of_one_completion() -> None:
    config = group_config(grpo={"filter_groups_by": "correct"}, advantage={"baseline": "none", "scale": "none"})
    unjudged = combined((0.3, 0.0), (0.7, -0.5), verifiers=("reward_model", "soft_overlong"))
    assert judge_group(config, unjudged).is_trained
    assert judge_group(config, combined((1.0, -0.5))).is_trained


def test_rewards_of_steps_and_environments_that_differ_are_no_shaping() -> None:
    config = group_config(grpo={"filter_groups_by": "correct"})
    wrong = combined((0.0, 0.0), (0.0, -0.5))
    paid = [replace(score, parts=(RewardPart("environment", n),)) for n, score in enumerate(wrong.scores)]
    assert judge_group(config, replace(wrong, scores=tuple(paid))).is_trained
    steps = replace(wrong, step_rewards=((TokenReward(0, 1.0),), (TokenReward(0, 0.0),)))
    assert judge_group(config, steps).is_trained and not judge_group(CONFIG, steps).learns_from_shaping_alone


def test_no_drop_rule_applies_where_nobody_says_what_is_correct() -> None:
    config = group_config(grpo={"difficulty_low": 0, "difficulty_high": 1, "max_wrong_completion_tokens": 1})
    group = judge_group(config, combined((0.3, 0.0), (0.7, -0.5), verifiers=("reward_model", "soft_overlong")))
    assert (group.correct_share, group.drop_reason, group.trained_indices) == (None, None, (0, 1))


def test_verifiers_that_scored_make_up_the_reward_with_partial_rewards() -> None:
    truths = (GroundTruth("a", 1, 1.0), GroundTruth("b", 1, 0.5))

    def score(index: int, first: float, second: float | None) -> Score:
        outcome = ScoreOutcome.SCORED if second is not None else ScoreOutcome.FAILED
        parts = (VerifierScore("a", ScoreOutcome.SCORED, first), VerifierScore("b", outcome, second or 0.0))
        return Score(index, outcome, first + 0.5 * (second or 0.0), parts)

    settled = replace(
        settled_group(0, [0.0, 0.0]),
        prompt=replace(PROMPT, ground_truths=truths),
        scores=(score(0, 1.0, None), score(1, 1.0, 1.0)),
    )
    assert judge_group(CONFIG, settled).drop_reason is DropReason.NOT_SCORED
    partial = {"scale": "none", "partial_rewards": True}
    assert judge_group(group_config(advantage=partial), settled).rewards.rewards == (1.0, 1.5)
    by_verifier = judge_group(group_config(advantage=partial | {"per_verifier": True}), settled)
    # The second verifier has a single value, which cannot be compared; the values of the first are equal.
    assert by_verifier.drop_reason is DropReason.NO_SIGNAL


@pytest.mark.parametrize("baseline", ["batch_mean", "none", "greedy"])
def test_equal_rewards_are_a_signal_where_the_baseline_is_not_the_groups_own(baseline: str) -> None:
    config = group_config(advantage={"baseline": baseline, "scale": "none"})
    greedy = Score(0, ScoreOutcome.SCORED, 0.0, ())
    assert judge_group(config, replace(settled_group(0, [1.0, 1.0]), greedy_score=greedy)).is_trained


def test_a_missing_greedy_reward_drops_the_group() -> None:
    config = group_config(advantage={"baseline": "greedy", "scale": "none"})
    greedy = Score(0, ScoreOutcome.FAILED, 0.0, ())
    group = judge_group(config, replace(settled_group(0, [1.0, 0.0]), greedy_score=greedy))
    assert group.drop_reason is DropReason.NOT_SCORED


def test_equal_rewards_with_equal_steps_are_no_signal() -> None:
    config = group_config(advantage={"step_rewards": True})
    settled = settled_group(0, [1.0, 1.0])
    equal = replace(settled, step_rewards=((TokenReward(0, 1.0),), (TokenReward(1, 1.0),)))
    different = replace(settled, step_rewards=((TokenReward(0, 1.0),), (TokenReward(1, 0.5),)))
    assert judge_group(config, equal).drop_reason is DropReason.NO_SIGNAL
    assert judge_group(config, different).is_trained
