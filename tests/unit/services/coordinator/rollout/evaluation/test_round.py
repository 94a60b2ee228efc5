"""The settings that held-out questions are answered with."""

from services.coordinator.rollout.evaluation.round import evaluation_sampling
from shoal.rollout import SamplingParams
from tests.support.configs import run_config


def test_answers_are_drawn_with_their_own_settings_and_without_supports() -> None:
    config = run_config(
        sampling={"top_k": 20, "top_p": 0.9, "min_p": 0.1, "max_completion_tokens": 8},
        evaluation={"sources": [{"task": "arithmetic"}], "temperature": 0.6},
    )
    training = SamplingParams(1.0, 8, (2,), top_p=0.9, top_k=20, min_p=0.1, return_support=True)
    assert evaluation_sampling(config, training) == SamplingParams(0.6, 8, (2,))
