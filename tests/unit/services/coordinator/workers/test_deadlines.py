"""Deadlines that the configuration leaves open."""

from typing import Any

import pytest

from services.coordinator.workers.deadlines import Pace, sampling_timeout_s, train_step_timeout_s
from shoal.config import RunConfig
from tests.support.groups import group_config


def config_of(max_completion_tokens: int, **coordinator: Any) -> RunConfig:
    return group_config(sampling={"max_completion_tokens": max_completion_tokens}, coordinator=coordinator)


@pytest.mark.parametrize(("num_tokens", "seconds"), [(16, 600.0), (6000, 600.0), (32_768, 3276.8)])
def test_the_time_to_sample_grows_with_the_longest_completion(num_tokens: int, seconds: float) -> None:
    assert sampling_timeout_s(config_of(num_tokens), Pace()) == pytest.approx(seconds)


def test_the_time_to_sample_is_five_times_what_the_slowest_would_have_taken() -> None:
    pace = Pace()
    pace.observe(1000, 200.0)
    pace.observe(1000, 10.0)
    assert sampling_timeout_s(config_of(10_000), pace) == pytest.approx(5 * 0.98 * 0.2 * 10_000)
    assert sampling_timeout_s(config_of(10_000, sampling_timeout_s=7.0), pace) == 7.0


def test_a_completion_of_a_few_tokens_is_no_measure_of_a_token() -> None:
    pace = Pace()
    pace.observe(1, 2.0)
    assert pace.token_s == pytest.approx(2.0 / 256)


def test_the_time_to_train_grows_with_the_tokens_of_the_step() -> None:
    pace = Pace()
    assert train_step_timeout_s(config_of(16), pace, 1000) == 3600.0
    assert train_step_timeout_s(config_of(16), pace, 67_000_000) == pytest.approx(67_000)
    pace.observe(1_000_000, 1000.0)
    assert train_step_timeout_s(config_of(16), pace, 2_000_000) == pytest.approx(10_000)
    assert train_step_timeout_s(config_of(16, train_step_timeout_s=5.0), pace, 2_000_000) == 5.0
