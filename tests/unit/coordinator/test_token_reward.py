from dataclasses import replace

import numpy as np
import pytest

from services.coordinator.sampling import SettledGroup
from services.coordinator.step import plan_step
from services.coordinator.token_reward import TokenReward, token_rewards
from shoal.config import parse_config
from shoal.rollout import GroundTruth, Score, ScoreOutcome, StepScore, VerifierScore
from tests.unit.coordinator.test_step import NOW, PROMPT, group, lengths

WORDS = ["Two ", "and ", "two ", "is ", "four", ""]
"""What each token reads as; the last is a stop token."""


def text_of(token_ids: list[int]) -> str:
    return "".join(WORDS[token] for token in token_ids)


@pytest.mark.parametrize(("end_char", "token"), [(0, 0), (4, 0), (5, 1), (8, 1), (15, 3), (19, 4), (99, 5)])
def test_a_step_ends_with_the_token_that_makes_its_text_long_enough(end_char: int, token: int) -> None:
    settled = lengths(group(0, [1.0]), [6])
    score = Score(
        0, ScoreOutcome.SCORED, 1.0, (VerifierScore("v", ScoreOutcome.SCORED, step_scores=(StepScore(end_char, 2.0),)),)
    )
    prompt = replace(PROMPT, ground_truths=(GroundTruth("v", 1, weight=0.5),))
    assert token_rewards(prompt, settled.completions[0], score, text_of) == (TokenReward(token, 1.0),)


def with_steps(settled: SettledGroup, *steps: tuple[TokenReward, ...]) -> SettledGroup:
    return replace(settled, step_rewards=steps)


def test_a_step_counts_for_every_token_up_to_its_end() -> None:
    config = parse_config(
        {
            "model": {"path": "m"},
            "data": {"sources": [{"path": "d"}]},
            "advantage": {"scale": "none", "step_rewards": True},
        }
    )
    settled = with_steps(
        lengths(group(0, [1.0, 1.0]), [3, 2]),
        (TokenReward(0, 1.0), TokenReward(2, 0.0)),
        (TokenReward(1, 0.5),),
    )
    plan = plan_step(config, [settled], NOW, "step")
    first, second = plan.trained[0].rollouts
    # The mean of all three steps is 0.5, and the completions themselves are as good as each other.
    assert first.token_advantages is not None and first.token_advantages.tolist() == [0.0, -0.5, -0.5]
    assert second.token_advantages is None and second.advantage == 0.0


def test_equal_rewards_with_equal_steps_are_no_signal() -> None:
    config = parse_config(
        {"model": {"path": "m"}, "data": {"sources": [{"path": "d"}]}, "advantage": {"step_rewards": True}}
    )
    settled = with_steps(group(0, [1.0, 1.0]), (TokenReward(0, 1.0),), (TokenReward(1, 1.0),))
    assert plan_step(config, [settled], NOW, "step").dropped == ((0, "no_signal"),)


def test_a_step_that_ends_where_nothing_counts_ends_with_the_policys_token_before() -> None:
    config = parse_config(
        {
            "model": {"path": "m"},
            "data": {"sources": [{"path": "d"}]},
            "advantage": {"scale": "none", "step_rewards": True},
        }
    )
    settled = lengths(group(0, [1.0, 1.0]), [3, 3])
    masked = replace(settled.completions[0], loss_mask=np.array([True, False, True]))
    settled = with_steps(
        replace(settled, completions=(masked, settled.completions[1])), (TokenReward(1, 1.0),), (TokenReward(2, 0.0),)
    )
    first, _ = plan_step(config, [settled], NOW, "step").trained[0].rollouts
    assert first.token_advantages is not None and first.token_advantages.tolist() == [0.5, 0.0, 0.0]
