"""Adapters as a folder that peft and vLLM load."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from services.learner.model.adapters import peft_config
from services.learner.storage.weights_folder import uniform, write_weights_file
from shoal.config.tables.lora import ALL_LINEAR, LoraConfig
from shoal.config.tables.model import ModelConfig
from shoal.models.model_folder import hub_revision

ADAPTER_FOLDER = "adapter"
"""The name of the folder within the merged model's folder."""


def write_adapter_folder(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Iterator[tuple[str, Tensor]],
    lora: LoraConfig,
    model: ModelConfig,
) -> None:
    """Writes adapters of `model` in float32, with peft's configuration, into a new folder.

    `tensors` yields the tensors of `shapes` in that order. Raises `OSError` when a file cannot be written.
    """
    folder.mkdir()
    write_weights_file(folder / "adapter_model.safetensors", uniform(shapes, torch.float32), tensors)
    targets = lora.target_modules
    if targets == [ALL_LINEAR]:
        targets = sorted({name.rpartition(".lora_")[0].rpartition(".")[2] for name in shapes})
    revision = hub_revision(model.path, model.revision)
    peft_config(lora, targets, base=model.path, revision=revision).save_pretrained(folder)
