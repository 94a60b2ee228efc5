"""How steps that are not applied are counted, and when there are too many of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.coordinator.rollout.filtering import judge_group
from services.coordinator.rollout.groups import DropReason, JudgedGroup
from services.coordinator.rollout.prompt_order import PromptOrder
from services.coordinator.store.progress import IssueState
from services.coordinator.training.skipped_steps import SkippedSteps, empty_reason
from shoal.config.live import LiveConfig
from shoal.data.prompt_set import PromptSet
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.rollout import Prompt
from tests.support.groups import group_config, settled_group
from tests.support.wordings import has_all, numbers_in

PROMPTS = PromptSet([Prompt(f"p:{row}", np.array([1], np.int32), "?", ()) for row in range(3)], ["?"] * 3)


def skipped_steps(excluded: frozenset[str] = frozenset(), **grpo: Any) -> SkippedSteps:
    return SkippedSteps(LiveConfig(group_config(grpo=grpo)), PromptOrder(PROMPTS, IssueState({}, 0, excluded)))


def group_of(prompt: int, rewards: list[float | None], reason: DropReason | None = None) -> JudgedGroup:
    settled = settled_group(0, rewards, drop_reason=reason)
    return judge_group(group_config(), replace(settled, prompt=PROMPTS.prompts[prompt]))


def with_signal(prompt: int = 0) -> JudgedGroup:
    return group_of(prompt, [0.0, 1.0])


def without_signal(prompt: int = 0) -> JudgedGroup:
    return group_of(prompt, [1.0, 1.0])


def not_scored(prompt: int = 0) -> JudgedGroup:
    return group_of(prompt, [None, None])


def refused(prompt: int = 0) -> JudgedGroup:
    return group_of(prompt, [], DropReason.REFUSED)


def skip(steps: SkippedSteps, *skipped: list[JudgedGroup]) -> None:
    for groups in skipped:
        steps.add(groups)
        steps.raise_if_too_many("why", "2 of 2 completions have no reward")


def test_a_step_without_a_signal_ends_a_row_of_refused_steps() -> None:
    steps = skipped_steps()
    skip(steps, *[[with_signal()]] * 2, *[[without_signal()]] * 5, *[[with_signal()]] * 2)
    assert (steps.num_in_a_row, steps.num_refused) == (9, 2)
    with pytest.raises(FailedPrecondition, match=r"learner refused 3 .*: why"):
        skip(steps, [with_signal()])


def test_a_given_limit_counts_every_kind_of_skipped_steps() -> None:
    steps = skipped_steps(max_skipped_steps=3)
    skip(steps, [with_signal()], [without_signal()])
    with pytest.raises(FailedPrecondition, match=r"3 .*grpo\.max_skipped_steps.*: why"):
        skip(steps, [refused()])


def learned(prompt: int) -> JudgedGroup:
    config = group_config(grpo={"easy_rate": 1.0})
    return judge_group(config, replace(settled_group(0, [1.0, 1.0]), prompt=PROMPTS.prompts[prompt]))


@pytest.mark.parametrize("grpo", [{}, {"max_skipped_steps": 1}])
def test_steps_that_are_skipped_since_every_prompt_is_learned_end_no_run(grpo: dict[str, Any]) -> None:
    order = PromptOrder(PROMPTS, IssueState({}, 0, frozenset()), easy_rate=1.0)
    steps = SkippedSteps(LiveConfig(group_config(grpo={"easy_rate": 1.0, **grpo})), order)
    groups = [learned(0), learned(1), learned(2)]
    order.exclude_learned(groups)
    skip(steps, *[groups] * 4)


def test_groups_of_learned_prompts_are_no_groups_without_a_signal() -> None:
    order = PromptOrder(PROMPTS, IssueState({}, 0, frozenset()), easy_rate=1.0)
    steps = SkippedSteps(LiveConfig(group_config(grpo={"easy_rate": 1.0})), order)
    skip(steps, *[[learned(0)] * 50] * 4)
    with pytest.raises(FailedPrecondition, match=" 100 groups"):
        skip(steps, *[[group_of(1, [0.0, 0.0])] * 50] * 2)


def test_a_run_ends_once_every_prompt_has_failed_and_says_of_what() -> None:
    steps = skipped_steps()
    skip(steps, [not_scored(0), refused(1)], [not_scored(0), not_scored(0)], [refused(1), not_scored(1)])
    with pytest.raises(FailedPrecondition) as raised:
        skip(steps, [not_scored(2), refused(1)])
    message = raised.value.message
    assert raised.value.reason == ErrorReason.STEPS_SKIPPED
    assert message.startswith("4 steps ") and "every prompt" in message, message
    assert has_all(message, " 8 groups: 5 not_scored, 3 refused; ", " 2 of 2 completions "), message
    assert has_all(message, "run rollouts --failed", "group_dropped"), message
    assert "sampling_timeout_s" not in message and "grpo.max_skipped_steps" in message, message


def test_few_prompts_that_fail_end_a_run_after_three_steps() -> None:
    steps = skipped_steps(excluded=frozenset({"p:0", "p:1"}))
    skip(steps, *[[refused(2)]] * 2)
    with pytest.raises(FailedPrecondition, match=r"3 steps .*every prompt"):
        skip(steps, [refused(2)])


@pytest.mark.parametrize("other", [without_signal(), with_signal()], ids=["no_signal", "refused by the learner"])
def test_a_group_with_rewards_shows_that_prompts_may_still_give_a_signal(other: JudgedGroup) -> None:
    steps = skipped_steps()
    skip(steps, *[[refused(0), refused(1), other, refused(2)]] * 2, [not_scored(0)], [not_scored(0)])
    with pytest.raises(FailedPrecondition, match=" 4 groups: 2 not_scored, 2 refused"):
        skip(steps, [refused(1)])


def test_a_step_that_is_applied_ends_the_row() -> None:
    steps = skipped_steps()
    skip(steps, *[[refused(0), refused(1)]] * 2)
    steps.end_row()
    skip(steps, *[[refused(2)]] * 3)
    assert steps.num_in_a_row == 3


def test_a_given_limit_lets_a_run_go_on_although_every_prompt_failed() -> None:
    skip(skipped_steps(max_skipped_steps=9), *[[refused(0), refused(1), refused(2)]] * 8)


def test_the_reasons_of_a_step_count_groups_that_were_dropped_before_they_were_scored() -> None:
    groups = [without_signal(), not_scored(), refused(), without_signal()]
    assert empty_reason(groups).endswith(": 2 no_signal, 1 not_scored, 1 refused")


def test_a_hundred_groups_whose_completions_are_all_right_show_that_the_prompts_are_learned() -> None:
    steps = skipped_steps()
    right = group_of(0, [1.0, 1.0])
    for groups in ([right] * 50, [right] * 49, [right] * 1):
        assert steps.num_learned_groups == 0, "before the third step and the hundredth group"
        steps.add(groups)
    assert steps.num_learned_groups == 100


@pytest.mark.parametrize(
    ("last", "grpo"), [(group_of(1, [0.0, 0.0]), {}), (group_of(1, [1.0, 1.0]), {"max_skipped_steps": 9})]
)
def test_wrong_completions_and_a_given_limit_end_no_run_as_learned(last: JudgedGroup, grpo: dict[str, Any]) -> None:
    steps = skipped_steps(**grpo)
    for groups in ([group_of(0, [1.0, 1.0])] * 60, [group_of(0, [1.0, 1.0])] * 60, [last]):
        steps.add(groups)
    assert steps.num_learned_groups == 0


def test_a_run_ends_once_a_hundred_groups_have_had_no_signal_and_says_what_they_have_in_common() -> None:
    steps = skipped_steps()
    wrong = group_of(0, [0.0, 0.0])
    skip(steps, [wrong] * 90, [without_signal()] * 9)
    steps.add([without_signal()])
    with pytest.raises(FailedPrecondition) as raised:
        steps.raise_if_too_many("why")
    message = raised.value.message
    assert raised.value.reason == ErrorReason.STEPS_SKIPPED
    assert numbers_in(message)[:4] == ["3", "100", "90", "10"], message
    assert message.index("all wrong") < message.index("all right")
    assert has_all(message, "run rollouts --dropped --last 5", "grpo.max_skipped_steps"), message


def test_steps_without_a_signal_end_no_run_before_a_hundred_groups_nor_before_three_steps() -> None:
    skip(skipped_steps(), *[[without_signal()] * 4] * 24)
    skip(skipped_steps(), *[[without_signal()] * 500] * 2)


def test_a_group_with_a_signal_begins_the_count_of_groups_without_one_anew() -> None:
    steps = skipped_steps()
    skip(steps, *[[without_signal()] * 40] * 2, [with_signal(), *[without_signal()] * 40], [without_signal()] * 99)
    steps.end_row()
    skip(steps, *[[without_signal()] * 49] * 2)


def test_a_given_limit_lets_a_run_go_on_without_a_signal() -> None:
    skip(skipped_steps(max_skipped_steps=30), *[[without_signal()] * 50] * 29)
