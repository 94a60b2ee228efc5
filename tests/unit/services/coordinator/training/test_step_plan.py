from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.coordinator.rollout.groups import DropReason, SettledGroup, TokenReward
from services.coordinator.training.step_plan import StepPlan, plan_step
from shoal.conversation import ChatMessage
from shoal.rollout import Episode, EpisodeTurn, FinishReason, GroundTruth, WeightVersion
from shoal.scores import ScoreOutcome
from tests.support.groups import NOW, PROMPT, group_config, judged, settled_group, with_lengths

CONFIG = group_config()


def plan_of(groups: list[SettledGroup], **sections: dict[str, object]) -> StepPlan:
    """Judges the groups and plans their step, with settings that differ from the defaults."""
    config = group_config(**sections)
    return plan_step(config, judged(config, groups), NOW, "step")


def advantages(plan: StepPlan) -> list[list[float]]:
    return [[rollout.advantage for rollout in group.rollouts] for group in plan.trained]


def test_dropped_groups_are_listed_with_the_reason_unless_they_were_dropped_before() -> None:
    timed_out = settled_group(3, [], drop_reason=DropReason.TIMEOUT)
    plan = plan_of([timed_out, settled_group(4, [1.0, 1.0]), settled_group(5, [0.0, 1.0])])
    assert plan.dropped == ((4, DropReason.NO_SIGNAL),)
    assert [train_group.group_id for train_group in plan.batch.groups] == ["g5"]


def test_staleness_counts_from_the_oldest_token() -> None:
    assert plan_of([settled_group(0, [0.0, 1.0], oldest=5)]).trained[0].staleness == 2


def test_a_version_of_another_attempt_is_never_trained_on() -> None:
    with pytest.raises(ValueError, match="attempt"):
        plan_step(CONFIG, judged(CONFIG, [settled_group(0, [0.0, 1.0])]), WeightVersion(1, 7), "step")


def test_truncated_completions_are_compared_with_and_not_trained_on() -> None:
    # The first completion of a group is cut off here.
    plan = plan_of([settled_group(0, [1.0, 0.0, 0.5])], grpo={"mask_truncated_completions": True})
    assert [rollout.completion.sample_index for rollout in plan.trained[0].rollouts] == [1, 2]
    assert advantages(plan) == [[-0.5, 0.0]], "the mean is over all three"


def test_groups_without_a_signal_get_zero_advantages_with_keep_zero_signal() -> None:
    groups = [settled_group(0, [1.0, 1.0]), settled_group(1, [None, None])]
    plan = plan_of(groups, grpo={"keep_zero_signal": True})
    assert advantages(plan) == [[0.0, 0.0]] and plan.dropped == ((1, DropReason.NOT_SCORED),)


def test_harder_prompts_weigh_more_and_the_mean_weight_is_1() -> None:
    groups = [settled_group(0, [1.0, 1.0, 0.0, 1.0]), settled_group(1, [1.0, 0.0, 0.0, 0.0])]
    plan = plan_of(groups, loss={"difficulty_weight": True})
    weights = [rollout.weight for trained in plan.trained for rollout in trained.rollouts]
    easy, hard = 0.5 + 1.5 / 4, 0.5 + 1.5 * 3 / 4
    mean = (easy + hard) / 2
    assert weights == pytest.approx([easy / mean] * 4 + [hard / mean] * 4)


def test_shorter_completions_weigh_more_and_the_mean_weight_is_1() -> None:
    plan = plan_of([with_lengths(settled_group(0, [1.0, 0.0, 0.0]), [10, 20, 30])], loss={"length_weight": True})
    assert [rollout.weight for rollout in plan.trained[0].rollouts] == pytest.approx([1.5, 1.0, 0.5])


@pytest.mark.parametrize(
    "section", [{"loss": {"length_weight": True}}, {"advantage": {"scale": "none", "baseline": "length_weighted"}}]
)
def test_an_episode_is_no_longer_for_what_its_environment_says(section: dict[str, dict[str, object]]) -> None:
    masks = [np.arange(num_tokens) < num_sampled for num_tokens, num_sampled in ((9, 1), (2, 2), (4, 3))]
    played = with_lengths(settled_group(0, [1.0, 0.0, 0.0]), [9, 2, 4])
    completions = [replace(each, loss_mask=mask) for each, mask in zip(played.completions, masks, strict=True)]
    alone = with_lengths(settled_group(0, [1.0, 0.0, 0.0]), [1, 2, 3])
    found, wanted = (
        [(rollout.advantage, rollout.weight) for rollout in plan_of([group], **section).trained[0].rollouts]
        for group in (replace(played, completions=tuple(completions)), alone)
    )
    assert found == wanted


def test_statistics_of_the_batch_include_the_groups_that_are_dropped() -> None:
    groups = [settled_group(0, [1.0, 0.0]), settled_group(1, [1.0, 1.0])]
    plan = plan_of(groups, advantage={"scale": "batch_std", "std_ddof": 0, "std_eps": 0.0})
    assert advantages(plan) == [[pytest.approx(0.5 / np.sqrt(3 / 16)), pytest.approx(-0.5 / np.sqrt(3 / 16))]]


def test_normalization_over_the_batch_is_over_the_groups_that_are_trained_on() -> None:
    groups = [settled_group(0, [2.0, 0.0]), settled_group(1, [1.0, 1.0])]
    plan = plan_of(groups, advantage={"scale": "none", "batch_normalize": True, "batch_std_eps": 0.0})
    assert advantages(plan) == [[pytest.approx(1 / np.sqrt(2)), pytest.approx(-1 / np.sqrt(2))]]


def test_whitened_advantages_have_mean_0_over_the_tokens_that_count() -> None:
    groups = [with_lengths(settled_group(0, [1.0, 0.0]), [1, 3])]
    plan = plan_of(groups, advantage={"scale": "none", "whiten": True, "whiten_ddof": 0, "whiten_eps": 0.0})
    first, second = plan.trained[0].rollouts
    assert first.token_advantages is None, "all tokens are worth the same"
    assert first.advantage + 3 * second.advantage == pytest.approx(0.0)
    assert (first.advantage**2 + 3 * second.advantage**2) / 4 == pytest.approx(1.0)


def test_discounted_advantages_differ_by_token() -> None:
    groups = [with_lengths(settled_group(0, [1.0, 0.0]), [3, 2])]
    first, second = plan_of(groups, advantage={"scale": "none", "discount": 0.5}).trained[0].rollouts
    assert first.token_advantages is not None and first.token_advantages.tolist() == [0.125, 0.25, 0.5]
    assert second.token_advantages is not None and second.token_advantages.tolist() == [-0.25, -0.5]


def test_a_step_counts_for_every_token_up_to_its_end() -> None:
    settled = replace(
        with_lengths(settled_group(0, [1.0, 1.0]), [3, 2]),
        step_rewards=((TokenReward(0, 1.0), TokenReward(2, 0.0)), (TokenReward(1, 0.5),)),
    )
    plan = plan_of([settled], advantage={"scale": "none", "step_rewards": True})
    first, second = plan.trained[0].rollouts
    # The mean of all three steps is 0.5, and the completions themselves are as good as each other.
    assert first.token_advantages is not None and first.token_advantages.tolist() == [0.0, -0.5, -0.5]
    assert second.token_advantages is None and second.advantage == 0.0


def test_a_step_that_ends_with_masked_tokens_rewards_the_counted_token_before_them() -> None:
    settled = with_lengths(settled_group(0, [1.0, 1.0]), [3, 3])
    masked = replace(settled.completions[0], loss_mask=np.array([True, False, True]))
    settled = replace(
        settled,
        completions=(masked, settled.completions[1]),
        step_rewards=((TokenReward(1, 1.0),), (TokenReward(2, 0.0),)),
    )
    plan = plan_of([settled], advantage={"scale": "none", "step_rewards": True})
    first, _ = plan.trained[0].rollouts
    assert first.token_advantages is not None and first.token_advantages.tolist() == [0.5, 0.0, 0.0]


def test_turns_of_segments_are_discounted_in_the_order_of_time() -> None:
    settled = with_lengths(settled_group(0, [1.0, 0.0]), [4, 4])
    said = ChatMessage("assistant", "")
    # The first segment has turns 1 and 3, the second turn 2, with two tokens.
    turns = tuple(
        EpisodeTurn(start, end, said, FinishReason.STOP, 0, number=number)
        for start, end, number in ((0, 1, 1), (1, 2, 3), (2, 4, 2))
    )
    episode = Episode(turns, "done", False, ScoreOutcome.SCORED)
    completions = tuple(replace(completion, episode=episode) for completion in settled.completions)
    settled = replace(settled, completions=completions)
    episodes = {"turn_rewards": "tokens", "turn_discount": 0.5}
    first, _ = plan_of([settled], advantage={"scale": "none"}, episodes=episodes).trained[0].rollouts
    assert first.token_advantages is not None and first.token_advantages.tolist() == [0.125, 0.5, 0.25, 0.25]
    paid = ((TokenReward(3, 1.0),), (TokenReward(3, 0.0),))
    settled = replace(settled, step_rewards=paid)
    first, _ = plan_of([settled], advantage={"scale": "none"}, episodes=episodes).trained[0].rollouts
    assert first.token_advantages is not None and first.token_advantages.tolist() == [0.375, 0.5, 0.75, 0.75]


@pytest.mark.parametrize("turn_discount", [1.0, 0.5])
def test_advantages_of_turns_are_those_that_the_documentation_defines(turn_discount: float) -> None:
    rewards = [1.0, 0.25, 0.0]
    of_turns = np.array([[0.5, 1.0], [0.0, 0.5], [-0.5, 0.0]])
    # Turn 1 is two tokens, the environment answers with two, turn 2 is two.
    mask = np.array([True, True, False, False, True, True])
    said = ChatMessage("assistant", "")
    turns = tuple(
        EpisodeTurn(start, start + 2, said, FinishReason.STOP, 0, number=number) for number, start in ((1, 0), (2, 4))
    )
    settled = with_lengths(settled_group(0, rewards), [6] * 3)
    completions = tuple(
        replace(each, loss_mask=mask, episode=Episode(turns, "done", False, ScoreOutcome.SCORED))
        for each in settled.completions
    )
    paid = tuple((TokenReward(1, first), TokenReward(5, last)) for first, last in of_turns)
    settled = replace(settled, completions=completions, step_rewards=paid)
    episodes = {"turn_rewards": "tokens", "turn_discount": turn_discount}
    plan = plan_of([settled], advantage={"scale": "group_std"}, episodes=episodes)

    def compared(values: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> Any:
        config = CONFIG.advantage
        return (values - values.mean()) / (values.std(ddof=config.std_ddof) + config.std_eps)

    first, last = compared(of_turns).T
    last = last + compared(np.array(rewards))
    first = first + turn_discount * last
    for rollout, one, two in zip(plan.trained[0].rollouts, first, last, strict=True):
        assert rollout.token_advantages is not None
        assert rollout.token_advantages == pytest.approx([one, one, 0.0, 0.0, two, two], rel=1e-5, abs=1e-6)


def _of_verifier(group: SettledGroup, verifier: str) -> SettledGroup:
    return replace(group, prompt=replace(PROMPT, ground_truths=(GroundTruth(verifier, "x"),)))


def test_the_statistics_of_the_batch_may_be_those_of_each_verifier() -> None:
    # Two tasks whose rewards differ by a factor of ten, two tokens a completion.
    groups = [
        _of_verifier(settled_group(0, [1.0, 0.0]), "math"),
        _of_verifier(settled_group(1, [10.0, 0.0]), "code"),
        _of_verifier(settled_group(2, [3.0, 0.0]), "math"),
    ]
    mean = {"baseline": "batch_mean", "scale": "none"}
    assert advantages(plan_of(groups, advantage=mean)) == [
        [pytest.approx(1 - 14 / 6), pytest.approx(-14 / 6)],
        [pytest.approx(10 - 14 / 6), pytest.approx(-14 / 6)],
        [pytest.approx(3 - 14 / 6), pytest.approx(-14 / 6)],
    ]
    assert advantages(plan_of(groups, advantage=mean | {"batch_per_verifier": True})) == [
        [0.0, -1.0],
        [5.0, -5.0],
        [2.0, -1.0],
    ]


@pytest.mark.parametrize("discount", [1.0, 1 - 1e-12])
def test_whitening_may_be_over_the_tokens_of_each_verifier(discount: float) -> None:
    groups = [_of_verifier(settled_group(0, [1.0, 0.0]), "math"), _of_verifier(settled_group(1, [10.0, 0.0]), "code")]
    options = {"baseline": "none", "scale": "none", "whiten": True, "whiten_ddof": 0, "whiten_eps": 0}
    plan = plan_of(groups, advantage=options | {"discount": discount, "batch_per_verifier": True})
    for values in advantages(plan):
        assert values == [pytest.approx(1.0, abs=1e-6), pytest.approx(-1.0, abs=1e-6)]
