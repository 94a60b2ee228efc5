"""Sampling parameters as messages: what is read is checked, and errors name the field."""

import math

import pytest

from shoal.errors import InvalidArgument
from shoal.rollout import SamplingParams
from shoal.wire import sampling_from_wire, sampling_to_wire


@pytest.mark.parametrize("temperature", [0.001, 2.5, math.nan, math.inf, -1.0])
def test_a_temperature_that_the_engine_would_replace_or_refuse_is_refused(temperature: float) -> None:
    with pytest.raises(InvalidArgument, match=r"sampling\.temperature: .* 0\.01 .* 2"):
        sampling_from_wire(sampling_to_wire(SamplingParams(temperature, 4, ())))
    sampling_from_wire(sampling_to_wire(SamplingParams(0.0, 4, ())))


def test_stop_strings_travel_with_the_sampling_and_an_empty_one_is_refused() -> None:
    sampling = SamplingParams(1.0, 4, (2,), stop_strings=("</answer>", "\n\n"))
    assert sampling_from_wire(sampling_to_wire(sampling)) == sampling
    with pytest.raises(InvalidArgument, match=r"sampling\.stop_strings: "):
        sampling_from_wire(sampling_to_wire(SamplingParams(1.0, 4, (), stop_strings=("</answer>", ""))))
