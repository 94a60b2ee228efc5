"""The optimizer and its parameter groups."""

import pytest
import torch
from torch import nn

from services.learner.engine.optimizer import make_optimizer
from shoal.config.tables.learner import LearnerConfig


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4))


@pytest.mark.parametrize(("decays_all", "is_decayed"), [(True, [True] * 5), (False, [True, True, False, False, False])])
def test_weight_decay_applies_to_matrices_and_to_vectors_only_if_configured(
    decays_all: bool, is_decayed: list[bool]
) -> None:
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
