"""Which parameters weight decay holds, and what is refused before a model is loaded."""

from typing import Any

import pytest
import torch
from torch import nn

from services.learner.deepspeed_settings import check_machine, policy_settings
from services.learner.optimizer import make_optimizer
from shoal.config import RunConfig, parse_config
from shoal.config.learner import LearnerConfig
from shoal.errors import InvalidArgument


def run_of(num_ranks: int = 1, **learner: Any) -> RunConfig:
    values = {"model": {"path": "m"}, "data": {"sources": [{"task": "arithmetic"}]}}
    return parse_config(values | {"learner": learner, "launch": {"num_learner_ranks": num_ranks}})


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4))


@pytest.mark.parametrize(("decays_all", "is_decayed"), [(True, [True] * 5), (False, [True, True, False, False, False])])
def test_weight_decay_holds_matrices_and_vectors_only_if_told(decays_all: bool, is_decayed: list[bool]) -> None:
    policy = model()
    config = LearnerConfig(learning_rate=0.5, weight_decay=0.1, weight_decay_on_bias_and_norm=decays_all)
    optimizer = make_optimizer(policy, config)
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    # Without a gradient AdamW only decays: weight x (1 - learning rate x decay).
    for old, new, decayed in zip(before, policy.parameters(), is_decayed, strict=True):
        torch.testing.assert_close(new.detach(), old * (0.95 if decayed else 1.0))


def test_a_group_without_parameters_is_left_out() -> None:
    optimizer = make_optimizer(nn.Linear(2, 2, bias=False), LearnerConfig(weight_decay_on_bias_and_norm=False))
    assert len(optimizer.param_groups) == 1


def test_fused_and_plain_adam_take_the_same_step() -> None:
    weights = []
    for fused in (True, False):
        policy = model()
        optimizer = make_optimizer(policy, LearnerConfig(learning_rate=0.1, weight_decay=0.1, fused_adam=fused))
        assert optimizer.defaults["fused"] is fused
        for _ in range(3):
            optimizer.zero_grad()
            policy(torch.arange(5)).square().sum().backward()
            optimizer.step()
        weights.append(torch.cat([parameter.detach().flatten() for parameter in policy.parameters()]))
    torch.testing.assert_close(weights[0], weights[1])


@pytest.mark.parametrize(
    ("num_ranks", "learner", "message"),
    [
        (2, {"sequence_parallel_size": 2}, r"sequence_parallel_size \(2\) above 1 needs zero_stage 3 \(it is 2\)"),
        (3, {"sequence_parallel_size": 2, "zero_stage": 3}, r"must divide the learner's ranks, .*\(3\)"),
        (3, {"zero_hpz_partition_size": 2, "zero_stage": 3}, r"zero_hpz_partition_size \(2\) must divide"),
        (1, {"zero_hpz_partition_size": 2}, "needs zero_stage 3"),
        (1, {"offload_optimizer": True, "zero_stage": 0}, "offload_optimizer needs zero_stage 1, 2 or 3"),
        (1, {"offload_parameters": True, "zero_stage": 3}, "needs zero_stage 3 .* and offload_optimizer"),
        (1, {"offload_parameters": True, "offload_optimizer": True}, r"needs zero_stage 3 \(it is 2\)"),
    ],
)
def test_sharding_that_cannot_be_is_refused(num_ranks: int, learner: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        run_of(num_ranks, **learner)


def test_offloading_without_a_gpu_is_refused_with_the_reason() -> None:
    config = LearnerConfig(offload_optimizer=True)
    with pytest.raises(InvalidArgument, match=r"learner\.offload_optimizer: this learner has no GPU"):
        check_machine(config, device=torch.device("cpu"), num_ranks=1)
    check_machine(config, device=torch.device("cuda"), num_ranks=1)


def test_groups_of_ranks_that_were_not_started_are_refused() -> None:
    config = LearnerConfig(zero_stage=3, sequence_parallel_size=2)
    with pytest.raises(InvalidArgument, match=r"sequence_parallel_size \(2\) must divide the learner's ranks \(3\)"):
        check_machine(config, device=torch.device("cpu"), num_ranks=3)


def test_deepspeed_is_told_what_to_hold_where() -> None:
    config = LearnerConfig(zero_stage=3, offload_optimizer=True, offload_parameters=True, zero_hpz_partition_size=4)
    zero = policy_settings(config)["zero_optimization"]
    assert zero["offload_optimizer"]["device"] == zero["offload_param"]["device"] == "cpu"
    assert zero["zero_hpz_partition_size"] == 4
    assert (
        not {"offload_optimizer", "offload_param", "zero_hpz_partition_size"}
        & policy_settings(LearnerConfig())["zero_optimization"].keys()
    )
