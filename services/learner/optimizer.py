"""AdamW (arXiv:1711.05101), and which parameters its weight decay holds."""

from typing import Any

import torch
from torch import nn

from shoal.config.learner import LearnerConfig


def make_optimizer(policy: nn.Module, config: LearnerConfig) -> torch.optim.AdamW:
    """AdamW over all parameters of a model that is still whole: once it is sharded every parameter is a vector."""
    return torch.optim.AdamW(
        parameter_groups(policy, config),
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        fused=config.fused_adam,
    )


def parameter_groups(policy: nn.Module, config: LearnerConfig) -> list[dict[str, Any]]:
    """Matrices (embeddings among them), and vectors, which are the biases and the weights of norms.

    All are decayed unless `weight_decay_on_bias_and_norm` is off; then vectors are not. A group with nothing in it is
    left out.
    """
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    if config.weight_decay_on_bias_and_norm:
        return [{"params": parameters, "weight_decay": config.weight_decay}]
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    vectors = [parameter for parameter in parameters if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
