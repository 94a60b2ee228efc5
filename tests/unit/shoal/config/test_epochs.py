"""Tests of the number of steps that `run.total_epochs` stands for."""

from typing import Any

import pytest

from shoal.config import RunConfig, parse_config
from shoal.config.epochs import with_counted_steps
from shoal.config.load import config_struct
from shoal.errors import InvalidArgument
from tests.support.configs import run_config


def epochs(**run: Any) -> RunConfig:
    return run_config(run=run, grpo={"groups_per_step": 8, "group_size": 4})


@pytest.mark.parametrize(("passes", "num_prompts", "num_steps"), [(2, 83, 20), (1.5, 24, 5), (0.1, 24, 1), (3, 8, 3)])
def test_a_pass_has_as_many_steps_as_the_data_have_whole_batches(
    passes: float, num_prompts: int, num_steps: int
) -> None:
    config = with_counted_steps(epochs(total_epochs=passes), num_prompts)
    assert (config.run.num_steps, config.run.total_epochs) == (num_steps, passes)


def test_the_steps_of_epochs_are_unknown_until_the_data_are_loaded_also_after_a_journey() -> None:
    config = parse_config(config_struct(epochs(total_epochs=2)))
    assert config.run.num_steps == 0
    counted = parse_config(config_struct(with_counted_steps(config, 83)))
    assert counted.run.num_steps == 20 and with_counted_steps(counted, 83) == counted


def test_a_configuration_without_epochs_stays_as_it_is() -> None:
    config = epochs(num_steps=7)
    assert with_counted_steps(config, 83) is config


def test_epochs_are_refused_beside_another_length() -> None:
    with pytest.raises(InvalidArgument, match=r"run\.total_epochs: .*run\.total_episodes"):
        epochs(total_epochs=2, total_episodes=640)
    with pytest.raises(InvalidArgument, match=r"2, .*20 steps of 8 .*83 prompts.*num_steps \(7\)"):
        with_counted_steps(epochs(total_epochs=2, num_steps=7), 83)
    with pytest.raises(InvalidArgument, match=r"run\.num_steps: "):
        epochs(num_steps=0)


def test_data_of_less_than_one_batch_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"7 prompts .* 8"):
        with_counted_steps(epochs(total_epochs=2), 7)
