"""Tests of the evaluation settings."""

from typing import Any

import pytest

from shoal.config import parse_config
from shoal.config.evaluation import EvaluationConfig
from shoal.errors import InvalidArgument

QUESTIONS = {"sources": [{"task": "arithmetic", "task_seed": 1}]}


def run_config(evaluation: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {"path": "m"},
        "data": {"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 100},
        "sampling": {"max_completion_tokens": 50},
        "evaluation": evaluation,
    } | sections


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0, 7]),
        ({"on_start": False}, [7]),
        ({"every_steps": 3}, [0, 3, 6, 7]),
        ({"every_steps": 10, "on_start": False}, [7]),
    ],
)
def test_the_last_policy_and_the_configured_ones_are_evaluated(settings: dict[str, Any], expected: list[int]) -> None:
    evaluation = EvaluationConfig.model_validate(QUESTIONS | settings)
    assert [step for step in range(8) if evaluation.is_due(step, 7)] == expected


def test_without_questions_no_evaluation_is_due() -> None:
    assert not any(EvaluationConfig(every_steps=1).is_due(step, 3) for step in range(4))


def test_several_samples_per_prompt_need_a_temperature() -> None:
    with pytest.raises(InvalidArgument, match=r"samples_per_prompt \(4\) above 1 needs a temperature above 0"):
        parse_config(run_config(QUESTIONS | {"samples_per_prompt": 4}))
    assert parse_config(run_config(QUESTIONS | {"samples_per_prompt": 4, "temperature": 0.6}))


def test_the_context_has_room_for_the_longest_answer() -> None:
    assert parse_config(run_config(QUESTIONS | {"max_completion_tokens": 400})).max_model_len == 500
    assert parse_config(run_config(QUESTIONS | {"max_completion_tokens": 10})).max_model_len == 150
    assert parse_config(run_config({"max_completion_tokens": 400})).max_model_len == 150, "no evaluation is configured"
    too_short = run_config(QUESTIONS | {"max_completion_tokens": 400}, generator={"max_model_len": 200})
    with pytest.raises(InvalidArgument, match=r"evaluation\.max_completion_tokens \(500\)"):
        parse_config(too_short)
