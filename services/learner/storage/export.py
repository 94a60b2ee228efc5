"""Export of the policy as a Hugging Face model folder."""

import copy
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.learner.engine.deepspeed_engine import DeepSpeedEngine
from services.learner.ranks.process_group import ProcessGroup
from services.learner.storage.adapter_folder import ADAPTER_FOLDER, write_adapter_folder
from services.learner.storage.atomic_folder import (
    delete_folder,
    discard_folder,
    finish_folder,
    list_files,
    start_folder,
    storage_error,
    sync,
)
from services.learner.storage.weights_folder import Shapes, write_weights_folder
from shoal.config.lora import LoraConfig
from shoal.config.model import ModelConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ShoalError
from shoal.models.model_folder import load_tokenizer, resolve_model
from shoal.paths import is_step_name
from shoal.worker.progress import Progress, silent

_GENERATION_CONFIG = "generation_config.json"


def export_model(
    engine: DeepSpeedEngine,
    lm: Any,
    model: ModelConfig,
    folder: Path,
    process_group: ProcessGroup,
    *,
    dtype: torch.dtype,
    lora: LoraConfig | None = None,
    progress: Progress = silent,
) -> None:
    """Writes weights in `dtype`, configuration, generation configuration and tokenizer. Call it on all ranks.

    With `lora` the weights are merged with the adapters, which the folder contains as well, in `adapter`.

    The folder appears whole or not at all. Raises, on every rank alike, `ResourceExhausted` when the disk is full and
    `FailedPrecondition` when a part cannot be written.
    """
    error: ShoalError | None = None
    tensors = _counted(engine.full_parameters(dtype), progress)
    adapters = iter(()) if lora is None else engine.adapter_parameters()
    if process_group.rank == 0:
        try:
            partial = start_folder(folder)
            write_weights_folder(partial, engine.shapes, tensors, dtype)
            if lora is not None:
                write_adapter_folder(partial / ADAPTER_FOLDER, engine.adapter_shapes, adapters, lora, model)
            progress("writing configuration and tokenizer")
            write_companions(partial, lm, model, dtype)
            for path in list_files(partial):
                sync(partial / path)
            finish_folder(folder)
        except ShoalError as raised:
            error = raised
        except OSError as raised:
            error = storage_error(raised, folder)
        except ValueError as raised:
            error = FailedPrecondition(f"the model cannot be exported: {raised}", reason=ErrorReason.NOT_EXPORTED)
    for _ in chain(tensors, adapters):
        # All ranks must take part in each gather, also rank 0 after a failed write.
        pass
    if error is not None:
        discard_folder(folder)
    process_group.raise_on_all(error)


def delete_other_exports(exports: Path, keep: Collection[str]) -> None:
    """Deletes the exports of steps that are not in `keep`, and what an interrupted one left. Call it on rank 0."""
    for other in exports.iterdir():
        name = other.name
        while name.endswith((".partial", ".deleted")):
            name = name.rpartition(".")[0]
        if is_step_name(name) and other.name not in keep:
            with suppress(OSError):  # The run goes on, and the next export tries again.
                delete_folder(other)


def _counted(tensors: Iterator[tuple[str, Tensor]], progress: Progress) -> Iterator[tuple[str, Tensor]]:
    num_bytes = 0
    for name, tensor in tensors:
        yield name, tensor
        num_bytes += tensor.nbytes
        progress(f"{num_bytes / 2**30:.1f} GiB of weights gathered")


def write_weights(
    folder: Path, shapes: Shapes, tensors: Iterator[tuple[str, Tensor]], process_group: ProcessGroup
) -> OSError | None:
    """Writes float32 safetensors into a new folder. Call it on all ranks: all gather, and rank 0 writes.

    `tensors` yields the tensors of `shapes` in that order. Returns a failed write instead of raising it.
    """
    error: OSError | None = None
    if process_group.rank == 0:
        try:
            folder.mkdir()
            write_weights_folder(folder, shapes, tensors, torch.float32)
        except OSError as raised:
            error = raised
    for _ in tensors:
        pass
    return error


def write_companions(folder: Path, lm: Any, model: ModelConfig, dtype: torch.dtype) -> None:
    """Writes what belongs to the weights of a model: configuration, generation configuration and tokenizer."""
    config = copy.deepcopy(lm.config)
    config.dtype = dtype
    config.architectures = [type(lm).__name__]
    if hasattr(config, "quantization_config"):
        # Only the learner holds 4-bit codes; what it writes is dequantized.
        del config.quantization_config
    config.save_pretrained(folder)
    source = resolve_model(model.path, model.revision, weights=False)
    if (source / _GENERATION_CONFIG).is_file():
        # Copied unchanged: transformers reads files that it refuses to write, such as a temperature without do_sample.
        shutil.copyfile(source / _GENERATION_CONFIG, folder / _GENERATION_CONFIG)
    elif lm.generation_config is not None:
        lm.generation_config.save_pretrained(folder)
    load_tokenizer(model).save_pretrained(folder)
    if model.trust_remote_code:
        for code in source.glob("*.py"):  # The configuration refers to them.
            shutil.copyfile(code, folder / code.name)
