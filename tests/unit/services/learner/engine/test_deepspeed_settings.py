"""DeepSpeed's settings, and those that are refused before a model is loaded."""

from typing import Any

import pytest
import torch

from services.learner.engine.deepspeed_settings import (
    check_machine,
    deepspeed,
    policy_settings,
    reference_settings,
    settle_on_machine,
)
from shoal.config import RunConfig, parse_config
from shoal.config.tables.learner import LearnerConfig
from shoal.errors import InvalidArgument
from shoal.models import compute_dtype

NUM_TRAINED = 1_000_000_000


def run_of(num_ranks: int = 1, **learner: Any) -> RunConfig:
    values = {"model": {"path": "m"}, "data": {"sources": [{"task": "arithmetic"}]}}
    return parse_config(values | {"learner": learner, "launch": {"num_learner_ranks": num_ranks}})


@pytest.mark.parametrize(
    ("num_ranks", "learner", "message"),
    [
        (2, {"sequence_parallel_size": 2}, r"sequence_parallel_size \(2\) above 1 needs zero_stage 3 \(it is unset\)"),
        (3, {"sequence_parallel_size": 2, "zero_stage": 3}, r"must divide the learner's ranks, .*\(3\)"),
        (3, {"zero_hpz_partition_size": 2, "zero_stage": 3}, r"zero_hpz_partition_size \(2\) must divide"),
        (1, {"zero_hpz_partition_size": 2}, "needs zero_stage 3"),
        (1, {"offload_optimizer": True, "zero_stage": 0}, "offload_optimizer needs zero_stage 1, 2 or 3"),
        (1, {"offload_parameters": True, "zero_stage": 3}, "needs zero_stage 3 .* and offload_optimizer"),
        (1, {"offload_parameters": True, "offload_optimizer": True}, r"needs zero_stage 3 \(it is unset\)"),
    ],
)
def test_impossible_sharding_is_refused(num_ranks: int, learner: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        run_of(num_ranks, **learner)


def test_offloading_without_a_gpu_is_refused_with_the_reason() -> None:
    config = LearnerConfig(offload_optimizer=True)
    with pytest.raises(InvalidArgument, match=r"learner\.offload_optimizer: "):
        check_machine(config, device=torch.device("cpu"), num_ranks=1)
    check_machine(config, device=torch.device("cuda"), num_ranks=1)


def test_groups_that_do_not_divide_the_ranks_are_refused() -> None:
    config = LearnerConfig(zero_stage=3, sequence_parallel_size=2)
    with pytest.raises(InvalidArgument, match=r"sequence_parallel_size \(2\) .*ranks \(3\)"):
        check_machine(config, device=torch.device("cpu"), num_ranks=3)


def test_deepspeed_gets_the_settings_of_offloading_and_second_copies() -> None:
    config = LearnerConfig(zero_stage=3, offload_optimizer=True, offload_parameters=True, zero_hpz_partition_size=4)
    zero = policy_settings(config, num_trained=NUM_TRAINED)["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == zero["offload_param"]["device"] == "cpu"
    assert zero["zero_hpz_partition_size"] == 4
    assert (
        not {"offload_optimizer", "offload_param", "zero_hpz_partition_size"}
        & policy_settings(LearnerConfig(), num_trained=NUM_TRAINED)["zero_optimization"].keys()
    )


@pytest.mark.parametrize(("num_ranks", "offloads", "stage"), [(1, False, 0), (2, False, 1), (1, True, 2), (8, True, 2)])
def test_the_stage_of_several_ranks_reduces_gradients_once_a_step_unless_memory_is_short(
    num_ranks: int, offloads: bool, stage: int
) -> None:
    assert LearnerConfig(offload_optimizer=offloads).stage_on(num_ranks) == stage


def test_a_bucket_is_not_larger_than_the_gradients() -> None:
    sizes = [policy_settings(LearnerConfig(zero_stage=2), num_trained=n)["zero_optimization"] for n in (1000, 10**9)]
    assert [zero["reduce_bucket_size"] for zero in sizes] == [1000, 50_000_000]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_on_a_gpu_deepspeed_knows_every_setting_and_offloads_to_pinned_memory(
    monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    offload = {"offload_optimizer": stage > 0, "offload_parameters": stage == 3}
    config = LearnerConfig(zero_stage=stage, compute_dtype="bfloat16", **offload)
    for settings in (
        policy_settings(config, num_trained=NUM_TRAINED),
        reference_settings(config, dtype=torch.bfloat16),
    ):
        parsed = deepspeed.DeepSpeedConfig(settings)
        zero = parsed.zero_config
        assert settings["zero_optimization"].keys() <= zero.model_fields_set and zero.stage == stage
        for name in ("offload_optimizer", "offload_param"):
            given = settings["zero_optimization"].get(name)
            assert given is None or getattr(zero, name).pin_memory
    parsed = deepspeed.DeepSpeedConfig(policy_settings(config, num_trained=NUM_TRAINED))
    assert parsed.zero_allow_untested_optimizer and not parsed.zero_force_ds_cpu_optimizer
    assert parsed.torch_autocast_enabled == (stage == 3) and parsed.gradient_clipping == (1.0 if stage else 0.0)


@pytest.mark.parametrize(("has_bfloat16", "settled"), [(True, "bfloat16"), (False, "float32")])
def test_a_cpu_without_bfloat16_instructions_computes_in_float32_where_the_type_is_open(
    has_bfloat16: bool, settled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_dtype, "has_instructions", lambda dtype: has_bfloat16)
    settings = settle_on_machine(LearnerConfig(), device=torch.device("cpu"), num_ranks=1)
    assert (settings.compute_dtype, settings.zero_stage) == (settled, 0)


@pytest.mark.parametrize(("stage", "overlaps"), [(1, False), (2, True)])
def test_stage_1_does_not_overlap_reductions_if_the_last_row_may_lack_a_gradient(stage: Any, overlaps: bool) -> None:
    config = LearnerConfig(zero_stage=stage)
    settings = policy_settings(config, num_trained=NUM_TRAINED, trains_every_parameter=False)
    assert settings["zero_optimization"]["overlap_comm"] is overlaps
    assert policy_settings(config, num_trained=NUM_TRAINED)["zero_optimization"]["overlap_comm"] is True
