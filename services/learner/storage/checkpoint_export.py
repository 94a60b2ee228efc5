"""`python -m services.learner.storage.checkpoint_export`: makes a model folder from a checkpoint, without a learner.

The command line `shoal`, which cannot import a service, runs this program. It reads one JSON document from stdin:
{"config": the whole RunConfig, "checkpoint": the checkpoint's `learner` folder, "files": [{"path", "num_bytes",
"sha256"}, ...] of its manifest, "folder": an existing folder to write into, "adapter": whether to write only the
adapter}.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.learner.engine.whole_weights import adapter_shapes, whole_adapters, whole_weights
from services.learner.model.adapters import add_adapters
from services.learner.model.language_model import load_whole, make_empty, read_config
from services.learner.model.policy import load_trained
from services.learner.model.weights import list_weights
from services.learner.storage.atomic_folder import list_files, storage_errors, sync
from services.learner.storage.checkpoints import SUMMARY, FileDigest, verify
from services.learner.storage.companions import write_companions
from services.learner.storage.file_tensors import FileTensors
from services.learner.storage.weights_folder import ADAPTER_FOLDER, write_adapter_folder, write_weights_folder
from shoal.config import RunConfig, parse_config
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, ShoalError
from shoal.models.compute_dtype import settled_dtype
from shoal.models.model_folder import model_config, read_json, resolve_model

_INVALID, _PRECONDITION, _FAILED = 2, 5, 1
_TAG = "state"
_PREFIX = "lm."
"""The prefix of the language model's parameters in the policy, the module that DeepSpeed saves."""


def main() -> int:
    """Writes the folder; returns one of the exit codes of `shoal`."""
    request = json.load(sys.stdin)
    checkpoint, folder = Path(request["checkpoint"]), Path(request["folder"])
    files = [FileDigest(**fields) for fields in request["files"]]
    try:
        with storage_errors(folder):
            config = parse_config(request["config"])
            export_checkpoint(config, checkpoint, files, folder, adapter_only=request["adapter"])
    except ShoalError as error:
        is_deleted = not checkpoint.is_dir()
        deleted = f"{checkpoint} was deleted (checkpoint.keep_last limits a run's checkpoints): export a newer step"
        print(f"error: {deleted if is_deleted else error.message}", file=sys.stderr)
        if isinstance(error, InvalidArgument):
            return _INVALID
        return _PRECONDITION if isinstance(error, FailedPrecondition | ResourceExhausted) else _FAILED
    return 0


def export_checkpoint(
    config: RunConfig, checkpoint: Path, files: Sequence[FileDigest], folder: Path, *, adapter_only: bool = False
) -> None:
    """Writes the policy of a checkpoint into a folder, in the type that the learner would export.

    The folder equals the learner's export: with `learner.lora` it has the merged model and the subfolder `adapter`,
    with `adapter_only` only this subfolder. Frozen weights come from the model's files. Raises `DataLoss` when a file
    of the checkpoint is missing or differs, and `FailedPrecondition` when the checkpoint lacks a trained parameter.
    """
    for file in files:
        verify(checkpoint, file)
    settings = config.learner
    has_frozen = settings.lora.is_on or bool(settings.freeze)
    reads_files = has_frozen and not adapter_only
    source = resolve_model(config.model.path, config.model.revision, weights=not adapter_only)
    lm = _model(config, source) if reads_files else _shape_of_model(config, source)
    _fill(lm, _trained(checkpoint, is_sharded=settings.zero_stage == 3), checkpoint)
    weights = list_weights(lm)
    if not adapter_only:
        # Checkpoints of earlier versions do not name the type.
        export_dtype = read_json(checkpoint / SUMMARY, optional=True).get("export_dtype", model_config(source).dtype)
        dtype = getattr(torch, export_dtype)
        tensors = FileTensors(lm, dtype, source)
        write_weights_folder(folder, tensors.forms, tensors.stream(whole_weights(weights, dtype, is_sharded=False)))
        write_companions(folder, lm, config.model, export_dtype)
    if settings.lora.is_on:
        adapters, target = whole_adapters(weights, is_sharded=False), folder / ADAPTER_FOLDER
        write_adapter_folder(target, adapter_shapes(weights), adapters, settings.lora, config.model)
    for path in list_files(folder):
        sync(folder / path)


def _model(config: RunConfig, source: Path) -> Any:
    """Loads the model with the weights of its files, the frozen parameters and the adapters of the learner."""
    settings = config.learner
    compute_dtype = settled_dtype("learner.compute_dtype", settings.compute_dtype, "bfloat16", on_cpu=True)
    settings = settings.model_copy(update={"compute_dtype": compute_dtype})
    trusted = config.model.trust_remote_code
    load = partial(load_whole, trust_remote_code=trusted, quantization=settings.lora.quantization)
    return load_trained(source, settings, seed=config.run.seed, load=load)


def _shape_of_model(config: RunConfig, source: Path) -> Any:
    trusted = config.model.trust_remote_code
    with torch.device("meta"):
        lm = make_empty(read_config(source, trust_remote_code=trusted), torch.float32, trust_remote_code=trusted)
        if config.learner.lora.is_on:
            add_adapters(lm, config.learner.lora, seed=config.run.seed)
    return lm


def _trained(checkpoint: Path, *, is_sharded: bool) -> dict[str, Tensor]:
    """Returns the trained parameters in float32, by their names in the learner's model."""
    if is_sharded:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        state = get_fp32_state_dict_from_zero_checkpoint(str(checkpoint), tag=_TAG, exclude_frozen_parameters=True)
    else:
        # Up to stage 2 every rank has all parameters, in float32, and rank 0 writes them.
        path = checkpoint / _TAG / "mp_rank_00_model_states.pt"
        state = torch.load(path, map_location="cpu", weights_only=False, mmap=True)["module"]
    return {name.removeprefix(_PREFIX): tensor for name, tensor in state.items() if name.startswith(_PREFIX)}


def _fill(lm: Any, trained: Mapping[str, Tensor], checkpoint: Path) -> None:
    wanted = [name for name, parameter in lm.named_parameters() if parameter.requires_grad]
    missing = [name for name in wanted if name not in trained]
    if missing:
        raise FailedPrecondition(
            f"{checkpoint} lacks {len(missing)} of the parameters that the run trains, for example "
            f"{', '.join(missing[:3])}: export another step",
            reason=ErrorReason.NOT_EXPORTED,
        )
    lm.load_state_dict({name: trained[name] for name in wanted}, strict=False, assign=True)
    lm.tie_weights()


if __name__ == "__main__":
    sys.exit(main())
