"""The reference: the model from which the KL divergence is measured.

The reference is either the initial model of the run (arXiv:1909.08593), or a model that follows the policy. The second
kind becomes (1 - alpha) x reference + alpha x policy every `kl.reference_update_steps` train steps, with alpha =
`kl.reference_alpha` (TR-DPO, arXiv:2404.09656). A run without a KL term neither loads nor runs a reference. A run that
trains adapters loads no second model: its reference is the policy without adapters.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.learner.engine.deepspeed_engine import DeepSpeedEngine
from services.learner.engine.deepspeed_settings import deepspeed, reference_settings, release, start_deepspeed
from services.learner.engine.layer_gathering import gather_by_layer
from services.learner.model.adapters import switched_off
from services.learner.model.packing import PackedRow
from services.learner.model.policy import Policy
from services.learner.model.weights import adapted_layers, list_weights
from shoal.config.tables.learner import LearnerConfig
from shoal.models.weight_files import WeightFiles


def follow(reference: Tensor, policy: Tensor, alpha: float) -> None:
    """Sets reference = (1 - alpha) x reference + alpha x policy, in place and in the reference's type; any shape."""
    reference.lerp_(policy.to(reference.device, reference.dtype), alpha)


class PolicyWithoutAdapters:
    """The reference of a policy that trains adapters. Call every method on all ranks, in the same order."""

    def __init__(self, engine: DeepSpeedEngine, lm: Any) -> None:
        """`lm` is the transformers model that the engine trains."""
        self._engine = engine
        self._layers = [layer for _, layer in adapted_layers(lm)]

    def logprobs(self, row: PackedRow, temperature: float) -> Tensor:
        """Computes the log-probabilities of the row's scored tokens, [C]."""
        with torch.no_grad(), switched_off(self._layers):
            logprobs_C, _ = self._engine.forward(row, temperature)
        return logprobs_C


class ReferenceModel:
    """A reference model that is not trained. At stage 3 it is sharded like the policy, else whole on every rank.

    Call every method on all ranks, in the same order.
    """

    def __init__(self, reference: Policy, config: LearnerConfig, *, device: torch.device) -> None:
        self._model: Any
        self._parameters = [(weight.name, weight.parameter) for weight in list_weights(reference.lm)]
        self._is_sharded = config.zero_stage == 3
        if self._is_sharded:
            start_deepspeed(device)
            settings = reference_settings(config, dtype=self._parameters[0][1].dtype)
            settings["zero_optimization"] |= gather_by_layer(reference.lm)
            self._model, *_ = deepspeed.initialize(model=reference, config=settings, dist_init_required=False)
            self._model.eval()
        else:
            self._model = reference.to(device)

    def logprobs(self, row: PackedRow, temperature: float) -> Tensor:
        """Computes the log-probabilities of the row's scored tokens, [C]."""
        with torch.no_grad():
            logprobs_C, _ = self._model(row, temperature)
        assert isinstance(logprobs_C, Tensor)
        return logprobs_C

    def follow(self, policy: Iterator[tuple[str, Tensor]], alpha: float) -> None:
        """Takes a step towards the policy. `policy` yields whole parameters by name, in this model's order."""
        for (name, parameter), (policy_name, tensor) in zip(self._parameters, policy, strict=True):
            assert name == policy_name
            with torch.no_grad(), self._whole(parameter, writes=True):
                follow(parameter.data, tensor.detach(), alpha)

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yields each whole parameter by name; exhaust the iterator. Do not write to the tensors."""
        for name, parameter in self._parameters:
            with self._whole(parameter, writes=False):
                whole = parameter.data.clone() if self._is_sharded else parameter.data
            yield name, whole

    def load(self, files: list[Path]) -> None:
        """Loads every parameter by name from safetensors files."""
        weights = WeightFiles(files)
        for name, parameter in self._parameters:
            with torch.no_grad(), self._whole(parameter, writes=True):
                parameter.data.copy_(weights.tensor(name))

    def close(self) -> None:
        """Releases the memory."""
        if self._is_sharded:
            release(self._model, [parameter for _, parameter in self._parameters])

    def _whole(self, parameter: torch.nn.Parameter, *, writes: bool) -> Any:
        """Returns a context in which the parameter is whole on every rank.

        With `writes`, all ranks must write the same values; the values of rank 0 are kept.
        """
        return deepspeed.zero.GatheredParameters(
            [parameter], modifier_rank=0 if writes else None, enabled=self._is_sharded
        )


Reference = ReferenceModel | PolicyWithoutAdapters
"""The model from which the KL divergence is measured."""
