"""Exports of a model without DeepSpeed, and of weights that a training has moved."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from services.learner.engine.whole_weights import adapter_shapes, whole_adapters, whole_weights
from services.learner.model.language_model import load_whole
from services.learner.model.policy import load_policy
from services.learner.model.weights import list_weights
from services.learner.ranks.process_group import ProcessGroup
from services.learner.storage.export import export_model
from shoal.config.tables.learner import LearnerConfig
from shoal.config.tables.lora import LoraConfig
from shoal.config.tables.model import ModelConfig


class Parameters:
    """A fake engine for exports, which counts the tensors that it yields."""

    def __init__(self, lm: Any) -> None:
        self.lm = lm
        self.num_given = 0
        self.shapes = {weight.name: weight.shape for weight in list_weights(lm)}

    def full_parameters(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        for weight in list_weights(self.lm):
            self.num_given += 1
            yield weight.name, weight.parameter.data


class Adapted(Parameters):
    """A fake engine of a model with adapters, which move its log-probabilities."""

    def __init__(self, source: Path, lora: LoraConfig) -> None:
        load = partial(load_whole, quantization=lora.quantization)
        policy = load_policy(source, LearnerConfig(compute_dtype="float32", lora=lora), seed=1, load=load)
        self.policy = policy
        super().__init__(policy.lm)
        self.weights = list_weights(policy.lm)
        self.shapes = {weight.name: weight.shape for weight in self.weights}
        self.adapter_shapes = adapter_shapes(self.weights)
        for weight in self.weights:
            if weight.adapter is not None:
                weight.adapter.b_OR.data.normal_(std=0.05, generator=torch.Generator().manual_seed(2))

    def full_parameters(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        return whole_weights(self.weights, dtype, is_sharded=False)

    def adapter_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return whole_adapters(self.weights, is_sharded=False)


def one_rank() -> ProcessGroup:
    """Returns a group of this process alone, which never communicates."""
    process_group = object.__new__(ProcessGroup)
    process_group.rank, process_group.size = 0, 1
    return process_group


def export_trained(source: Path, folder: Path, *, moved_by: float = 0.0, dtype: str = "float32", **model: Any) -> Any:
    """Exports a model whose weights have moved by that standard deviation, in a type; returns the model in float32."""
    lm = load_whole(source, torch.float32, trust_remote_code=bool(model.get("trust_remote_code")))
    generator = torch.Generator().manual_seed(1)
    for parameter in lm.parameters():
        parameter.data += moved_by * torch.randn(parameter.shape, generator=generator)
    engine: Any = Parameters(lm)
    try:
        export_model(engine, lm, ModelConfig(path=str(source), **model), folder, one_rank(), dtype=dtype)
    finally:
        assert engine.num_given == len(list(lm.parameters())), "the other ranks gather every tensor"
    return lm
