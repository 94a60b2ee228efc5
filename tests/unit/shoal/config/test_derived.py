"""Tests of the values derived from a configuration."""

from typing import Any

import pytest

from shoal.config import dump_config, parse_config
from shoal.config.derived import derived_values
from shoal.errors import InvalidArgument
from tests.support.configs import run_config


def test_every_derived_value_follows_from_the_fields() -> None:
    grpo = {"group_size": 4, "groups_per_step": 12, "num_mini_batches": 3, "num_epochs": 2, "max_staleness": 2}
    schedule = {"lr_scheduler": "linear", "warmup_ratio": 0.11}
    config = run_config(
        run={"name": "r", "num_steps": 10},
        grpo=grpo,
        learner={"zero_stage": 3, "sequence_parallel_size": 2, **schedule},
        launch={"num_learner_ranks": 4, "num_generators": 3},
        generator={"tensor_parallel_size": 2},
    )
    derived = derived_values(config)
    assert derived == {
        "run_name": "r",
        "world_size": 4,
        "data_parallel_size": 2,
        "num_generator_gpus": 6,
        "completions_per_step": 48,
        "completions_per_optimizer_step": 16,
        "optimizer_steps_per_step": 6,
        "accumulation_steps": 16 / 2,
        "train_steps": 10,
        "optimizer_steps": 60,
        "total_episodes": 480,
        "warmup_steps": 7,  # 0.11 of 60, rounded up.
        "max_sequence_tokens": 3072,
        "max_model_len": 3072,
        "max_groups_in_flight": 36,
        "max_step_bytes": 2 * ((1 + 12 + 48) * 2048 + 12 * 2048 * 4 + 48 * 1024 * 13),
        "loads_reference": False,
    }


def test_steps_follow_from_the_episodes() -> None:
    config = run_config(run={"total_episodes": 1000}, grpo={"group_size": 4, "groups_per_step": 8})
    assert config.run.num_steps == 1000 // 32
    assert parse_config(dump_config(config)) == config, "a resolved configuration has both, with the same meaning"


@pytest.mark.parametrize(
    ("overlong", "message"),
    [
        (
            {"factor": 1},
            r"reward.overlong.buffer_tokens \(1024\) must be at most sampling.max_completion_tokens \(100\)",
        ),
        (
            {"factor": 1, "max_length_tokens": 60, "buffer_tokens": 61},
            r"at most reward.overlong.max_length_tokens \(60\)",
        ),
    ],
)
def test_a_length_penalty_that_would_start_below_0_tokens_is_refused(overlong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        run_config(sampling={"max_completion_tokens": 100}, reward={"overlong": overlong})
    run_config(sampling={"max_completion_tokens": 100}, reward={"overlong": overlong | {"factor": 0}})


def test_a_mini_batch_without_a_completion_for_each_rank_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"4 completions .*8 ranks"):
        run_config(grpo={"group_size": 4, "groups_per_step": 1}, launch={"num_learner_ranks": 8})
