from dataclasses import replace

import numpy as np
import pytest

from services.coordinator.rollout.filtering import judge_group
from services.coordinator.rollout.groups import JudgedGroup
from services.coordinator.rollout.prompt_order import PromptOrder
from services.coordinator.store.progress import IssueState
from shoal.data.prompt_set import PromptSet
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.rollout import Prompt
from tests.support.groups import group_config, settled_group

NOTHING_ISSUED = IssueState({}, 0, frozenset())
PROMPTS = PromptSet(
    [Prompt(f"p:{row}", np.array([1], np.int32), "?", ()) for row in range(3)], ["?"] * 3, shuffle=False
)


def group_of(prompt: Prompt, rewards: list[float | None]) -> JudgedGroup:
    return judge_group(group_config(), replace(settled_group(0, rewards), prompt=prompt))


def test_a_resumed_order_assigns_the_same_prompts_to_the_groups_in_flight() -> None:
    order = PromptOrder(PROMPTS, IssueState({7: 2}, 4, frozenset({"p:2"})))
    assert order.next(7)[0] == 2, "although its prompt is excluded meanwhile"
    assert [order.next(number)[0] for number in (8, 9)] == [4, 6], "position 5 is the excluded prompt"


def test_prompts_with_an_easy_group_are_not_issued_again() -> None:
    order = PromptOrder(PROMPTS, NOTHING_ISSUED, easy_rate=0.5)
    groups = [group_of(PROMPTS.at(0), [1.0, 0.0]), group_of(PROMPTS.at(1), [0.0, 0.0]), group_of(PROMPTS.at(2), [None])]
    assert order.exclude_learned(groups) == [(0, "p:0")], "half of the first group is correct"
    assert order.num_excluded == 1
    assert [order.next(number)[1].prompt_id for number in range(3)] == ["p:1", "p:2", "p:1"]


def test_an_order_without_a_prompt_left_ends_the_run() -> None:
    order = PromptOrder(PROMPTS, NOTHING_ISSUED, unusable=["p:0", "p:1", "p:2"])
    assert order.has(0) and not order.are_learned, "it has learned none"
    with pytest.raises(FailedPrecondition) as caught:
        order.next(0)
    assert caught.value.reason == ErrorReason.PROMPTS_EXHAUSTED


def test_prompts_are_learned_once_all_that_can_be_scored_are() -> None:
    order = PromptOrder(PROMPTS, IssueState({7: 2}, 4, frozenset({"p:0"})), easy_rate=0.5, unusable=["p:2"])
    assert order.has(8) and not order.are_learned
    order.exclude_learned([group_of(PROMPTS.at(1), [1.0, 0.0])])
    assert order.are_learned and not order.has(8)
    assert order.has(7), "a group in flight has its prompt"


def test_prompts_that_are_not_issued_any_more_are_not_asked_for() -> None:
    order = PromptOrder(PROMPTS, IssueState({}, 0, frozenset({"p:0"})), unusable=["p:2"])
    assert order.has_only({"p:1"}) and not order.has_only({"p:0", "p:2"})
