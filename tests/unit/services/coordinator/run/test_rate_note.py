"""Tests of what another length of the run does to its learning rate."""

from typing import Any

import pytest

from services.coordinator.run.config_updates import rate_note
from shoal.config import RunConfig
from tests.support.groups import group_config
from tests.support.wordings import has_all


def of_length(num_steps: int, **learner: Any) -> RunConfig:
    return group_config(
        run={"num_steps": num_steps}, learner={"learning_rate": 1e-4, "lr_scheduler": "linear"} | learner
    )


def test_both_rates_are_named_where_the_schedule_follows_the_length() -> None:
    note = rate_note(of_length(10), of_length(200), 10)
    assert has_all(note, " 1e-05 (step 10) ", " 9.5e-05 (step 11)", "10 -> 200"), note
    assert has_all(rate_note(of_length(10), of_length(4), 2), " 9e-05 (step 2) ", " 5e-05 (step 3)")


@pytest.mark.parametrize(
    ("before", "after", "taken"),
    [
        (of_length(10), of_length(10), 10),
        (of_length(10), of_length(200), 0),
        (of_length(10, lr_scheduler="constant"), of_length(200, lr_scheduler="constant"), 10),
        (of_length(10, lr_scheduler="inverse_sqrt"), of_length(200, lr_scheduler="inverse_sqrt"), 10),
        (of_length(10), of_length(200, learning_rate=1e-5), 10),
    ],
)
def test_nothing_is_said_where_no_rate_jumps_or_another_is_chosen(
    before: RunConfig, after: RunConfig, taken: int
) -> None:
    assert rate_note(before, after, taken) == ""
