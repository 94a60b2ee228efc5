"""Refusals of settings by which nothing could be correct."""

from typing import Any

import pytest

from shoal.errors import InvalidArgument
from tests.support.configs import run_config


@pytest.mark.parametrize(
    ("reward", "named"),
    [
        ({"correct": ["gsm8k", "Soft_Overlong"]}, "soft_overlong"),
        ({"correct": ["passthrough"]}, "passthrough"),
        ({"correct": ["r1_format"], "verifiers": {"r1_format": {"reward": 0.5}}}, "r1_format"),
        ({"correct": ["code"], "verifiers": {"code": {"reward_speed": True}}}, "code"),
    ],
)
def test_a_verifier_that_never_calls_a_completion_correct_is_refused(reward: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument, match=f"reward.correct: '{named}'"):
        run_config(reward=reward)


def test_a_measure_and_a_reward_model_may_be_named() -> None:
    reward = run_config(reward={"correct": ["max_length", "reward_model"]}).reward
    assert reward.says_correct("reward_model") and not reward.says_correct("gsm8k")
