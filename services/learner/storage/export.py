"""Export of the policy as a Hugging Face model folder."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.learner.engine.deepspeed_engine import DeepSpeedEngine
from services.learner.ranks.process_group import ProcessGroup
from services.learner.storage.atomic_folder import (
    delete_folder,
    discard_folder,
    finish_folder,
    list_files,
    start_folder,
    storage_error,
    sync,
)
from services.learner.storage.companions import write_companions
from services.learner.storage.file_tensors import FileTensors
from services.learner.storage.weights_folder import ADAPTER_FOLDER, uniform, write_adapter_folder, write_weights_folder
from shoal.config.tables.lora import LoraConfig
from shoal.config.tables.model import ModelConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ShoalError
from shoal.models.model_folder import resolve_model
from shoal.paths import is_step_name
from shoal.worker.lifecycle import Progress, silent


def export_model(
    engine: DeepSpeedEngine,
    lm: Any,
    model: ModelConfig,
    folder: Path,
    process_group: ProcessGroup,
    *,
    dtype: str,
    lora: LoraConfig | None = None,
    progress: Progress = silent,
) -> None:
    """Writes the model's files with the trained weights in the type `dtype`. Call this function on all ranks.

    The folder has the same names and files as the source, so every program that loads the source also loads the folder.
    With `lora` the weights are merged with the adapters; the folder also contains the adapters, in `adapter`.

    The folder appears completely or not at all. Raises, on every rank alike, `ResourceExhausted` when the disk is full
    and `FailedPrecondition` when a part cannot be written.
    """
    error: ShoalError | None = None
    torch_dtype = getattr(torch, dtype)
    tensors = _counted(engine.full_parameters(torch_dtype), progress)
    adapters = iter(()) if lora is None else engine.adapter_parameters()
    if process_group.rank == 0:
        try:
            partial = start_folder(folder)
            files = FileTensors(lm, torch_dtype, resolve_model(model.path, model.revision))
            write_weights_folder(partial, files.forms, files.stream(tensors))
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
        # All ranks must take part in each gather, including rank 0 after a failed write.
        pass
    if error is not None:
        discard_folder(folder)
    process_group.raise_on_all(error)


def delete_other_exports(exports: Path, keep: Collection[str]) -> None:
    """Deletes, on rank 0, the exports that are not in `keep`, and the remains of interrupted exports."""
    for other in exports.iterdir():
        name = other.name
        while name.endswith((".partial", ".deleted")):
            name = name.rpartition(".")[0]
        if is_step_name(name) and other.name not in keep:
            with suppress(OSError):  # The run continues, and the next export tries again.
                delete_folder(other)


def _counted(tensors: Iterator[tuple[str, Tensor]], progress: Progress) -> Iterator[tuple[str, Tensor]]:
    num_bytes = 0
    for name, tensor in tensors:
        yield name, tensor
        num_bytes += tensor.nbytes
        progress(f"{num_bytes / 2**30:.1f} GiB of weights gathered")


def write_weights(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Iterator[tuple[str, Tensor]],
    process_group: ProcessGroup,
) -> OSError | None:
    """Writes float32 safetensors into a new folder. Call it on all ranks: all ranks gather, and rank 0 writes.

    `tensors` yields the tensors of `shapes` in that order. Returns the error of a failed write instead of raising it.
    """
    error: OSError | None = None
    if process_group.rank == 0:
        try:
            folder.mkdir()
            write_weights_folder(folder, uniform(shapes, torch.float32), tensors)
        except OSError as raised:
            error = raised
    for _ in tensors:
        pass
    return error
