"""Refusals of settings by which nothing could be correct."""

from typing import Any

import pytest
from pydantic import ValidationError

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
    with pytest.raises(InvalidArgument, match=f"reward.correct: '{named}'.*best value is below 1"):
        parse_config(values("gsm8k", reward=reward))


def test_a_measure_and_a_reward_model_may_be_named() -> None:
    config = RunConfig.model_validate(values("reward_model", reward={"correct": ["max_length", "reward_model"]}))
    assert config.reward.says_correct("reward_model") and not config.reward.says_correct("gsm8k")


@pytest.mark.parametrize("verifier", ["soft_overlong", ["reward_model", "Max_Length"]])
def test_a_filter_by_what_is_correct_is_refused_where_no_source_has_a_verifier_that_says_it(verifier: Any) -> None:
    with pytest.raises(ValidationError, match=r'grpo.filter_groups_by: "correct"'):
        RunConfig.model_validate(values(verifier, grpo={"filter_groups_by": "correct"}))
    for said_by in ("gsm8k", "my_function", None):  # Without a verifier the rows name theirs.
        assert RunConfig.model_validate(values(said_by, grpo={"filter_groups_by": "correct"}))


def test_training_on_what_the_filter_leaves_out_is_refused() -> None:
    grpo = {"filter_groups_by": "correct", "keep_zero_signal": True}
    with pytest.raises(ValidationError, match=r"filter_groups_by.*keep_zero_signal"):
        RunConfig.model_validate(values("gsm8k", grpo=grpo))
