"""Tests of the evaluation settings."""

from typing import Any

import pytest

from shoal.config import RunConfig
from shoal.config.tables.evaluation import EvaluationConfig
from shoal.errors import InvalidArgument
from tests.support.configs import run_config

QUESTIONS = {"sources": [{"task": "arithmetic", "task_seed": 1}]}


def evaluated(evaluation: dict[str, Any], **sections: dict[str, Any]) -> RunConfig:
    data = {"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 100}
    return run_config(**{"data": data, "sampling": {"max_completion_tokens": 50}, "evaluation": evaluation} | sections)


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
    with pytest.raises(InvalidArgument, match=r"samples_per_prompt \(4\) .* temperature"):
        evaluated(QUESTIONS | {"samples_per_prompt": 4})
    assert evaluated(QUESTIONS | {"samples_per_prompt": 4, "temperature": 0.6})


def test_the_context_has_room_for_the_longest_answer() -> None:
    assert evaluated(QUESTIONS | {"max_completion_tokens": 400}).max_model_len == 500
    assert evaluated(QUESTIONS | {"max_completion_tokens": 10}).max_model_len == 150
    assert evaluated({"max_completion_tokens": 400}).max_model_len == 150, "no evaluation is configured"
    with pytest.raises(InvalidArgument, match=r"evaluation\.max_completion_tokens \(500\)"):
        evaluated(QUESTIONS | {"max_completion_tokens": 400}, generator={"max_model_len": 200})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.005}, r"temperature \(0\.005\) must be 0, .* or at least 0\.01"),
        ({"temperature": 2.5}, r"evaluation\.temperature"),
        ({"temperature": 1.0, "samples_per_prompt": 4, "pass_at_k": [1, 8]}, r"pass_at_k \(8\) must be from 1 to"),
        ({"temperature": 1.0, "pass_at_k": [0]}, r"pass_at_k \(0\) must be from 1 to"),
        ({"stop_strings": [""]}, r"evaluation\.stop_strings"),
    ],
)
def test_settings_that_the_engine_or_the_estimate_cannot_use_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        evaluated(QUESTIONS | settings)


def test_services_accept_all_answers_to_a_question_together() -> None:
    many = QUESTIONS | {"temperature": 1.0, "samples_per_prompt": 64}
    queues = {"generator": {"max_num_seqs": 16, "max_queued_requests": 16}}
    with pytest.raises(InvalidArgument, match=r"\(32\) .* evaluation\.samples_per_prompt \(64\)"):
        evaluated(many, **queues)
    assert evaluated({"temperature": 1.0, "samples_per_prompt": 64}, **queues), "nothing is evaluated"


def test_engines_look_for_strings_where_training_or_an_evaluation_has_some() -> None:
    assert not evaluated(QUESTIONS).has_stop_strings
    assert evaluated(QUESTIONS | {"stop_strings": ["x"]}).has_stop_strings
    assert not evaluated({"stop_strings": ["x"]}).has_stop_strings
    assert evaluated(QUESTIONS | {"stop_strings": []}, sampling={"stop_strings": ["x"]}).has_stop_strings
