"""The optimizer: AdamW (arXiv:1711.05101) and its parameter groups for weight decay."""

from typing import Any

import torch
from torch import nn

from services.learner.model.weights import whole_shape
from shoal.config.tables.learner import LearnerConfig


def make_optimizer(policy: nn.Module, config: LearnerConfig) -> torch.optim.AdamW:
    """Makes AdamW over the trained parameters of a model. The parameters may be sharded."""
    return torch.optim.AdamW(
        parameter_groups(policy, config),
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        fused=config.fused_adam,
    )


def parameter_groups(policy: nn.Module, config: LearnerConfig) -> list[dict[str, Any]]:
    """Splits the trained parameters into matrices (also embeddings) and vectors (biases and weights of norms).

    Weight decay applies to matrices, and with `weight_decay_on_bias_and_norm` also to vectors. Omits empty groups.
    """
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    if config.weight_decay_on_bias_and_norm:
        return [{"params": parameters, "weight_decay": config.weight_decay}]
    matrices = [parameter for parameter in parameters if len(whole_shape(parameter)) >= 2]
    vectors = [parameter for parameter in parameters if len(whole_shape(parameter)) < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
