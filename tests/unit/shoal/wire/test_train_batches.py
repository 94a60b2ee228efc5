"""Train batches as the messages of `TrainStep`: what is read is checked, and errors name the field."""

import math

import pytest

from shoal.errors import InvalidArgument
from shoal.wire import batch_from_wire, batch_to_wire
from tests.support.train_batches import make_batch


@pytest.mark.parametrize("temperature", [math.nan, math.inf, -1.0])
def test_a_temperature_that_is_no_positive_finite_number_is_refused(temperature: float) -> None:
    header, *rest = batch_to_wire(make_batch())
    header.header.temperature = temperature
    with pytest.raises(InvalidArgument, match=r"header\.temperature"):
        batch_from_wire([header, *rest])
