"""Refusals of settings by which nothing could be correct."""

from typing import Any

import pytest

from shoal.config import RunConfig, parse_config
from shoal.errors import InvalidArgument


def values(verifier: str | list[str] | None, **sections: Any) -> dict[str, Any]:
    return {"model": {"path": "m"}, "data": {"sources": [{"path": "d", "verifier": verifier}]}, **sections}


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
        parse_config(values("gsm8k", reward=reward))


def test_a_measure_and_a_reward_model_may_be_named() -> None:
    config = RunConfig.model_validate(values("reward_model", reward={"correct": ["max_length", "reward_model"]}))
    assert config.reward.says_correct("reward_model") and not config.reward.says_correct("gsm8k")
