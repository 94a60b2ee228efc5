"""`python -m services.learner.storage.checkpoint_export`: makes a model folder of a checkpoint, without a learner.

For the command line, which cannot import a service. Reads one JSON document from stdin: {"config": the whole RunConfig,
"checkpoint": the checkpoint's `learner` folder, "files": [{"path", "num_bytes", "sha256"}, ...] of its manifest,
"folder": an existing folder to write into}.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from services.learner.model.language_model import make_empty, read_config
from services.learner.storage.checkpoints import FileDigest, verify
from services.learner.storage.export import write_companions
from services.learner.storage.weights_folder import write_weights_folder
from shoal.config import RunConfig, parse_config
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, InvalidArgument, ShoalError
from shoal.models.model_folder import model_config, resolve_model

_INVALID, _PRECONDITION, _FAILED = 2, 5, 1
_TAG = "state"
_PREFIX = "lm."
"""Of the language model's parameters in the policy, which is the module that DeepSpeed saves."""


def main() -> int:
    """Writes the folder; returns one of the exit codes of `shoal`."""
    request = json.load(sys.stdin)
    try:
        export_checkpoint(
            parse_config(request["config"]),
            Path(request["checkpoint"]),
            [FileDigest(**fields) for fields in request["files"]],
            Path(request["folder"]),
        )
    except ShoalError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if isinstance(error, InvalidArgument):
            return _INVALID
        return _PRECONDITION if isinstance(error, FailedPrecondition) else _FAILED
    return 0


def export_checkpoint(config: RunConfig, checkpoint: Path, files: Sequence[FileDigest], folder: Path) -> None:
    """Writes the policy of a checkpoint into a folder, in the type of the model's own files.

    Raises `DataLoss` when a file of the checkpoint is missing or differs, and `FailedPrecondition` when it does not
    hold the whole model.
    """
    if config.learner.lora.rank or config.learner.freeze:
        raise FailedPrecondition(
            f"{checkpoint} holds what is trained (learner.lora, learner.freeze), not a whole model: take an export of "
            "the run (checkpoint.export_every_steps) or its trained model",
            reason=ErrorReason.NOT_EXPORTED,
        )
    for file in files:
        verify(checkpoint, file)
    trusted = config.model.trust_remote_code
    source = resolve_model(config.model.path, config.model.revision, weights=False)
    with torch.device("meta"):
        lm = make_empty(read_config(source, trust_remote_code=trusted), torch.float32, trust_remote_code=trusted)
    shapes = {name: tuple(parameter.shape) for name, parameter in lm.named_parameters()}
    weights = _weights(checkpoint, config.learner.zero_stage)
    missing = sorted(shapes.keys() - weights.keys())
    if missing:
        raise FailedPrecondition(
            f"{checkpoint} does not hold the whole model: {', '.join(missing[:3])} and {len(missing) - 1} more are not "
            "in it",
            reason=ErrorReason.NOT_EXPORTED,
        )
    dtype = getattr(torch, model_config(source).dtype)
    write_weights_folder(folder, shapes, _ordered(shapes, weights), dtype)
    write_companions(folder, lm, config.model, dtype)


def _weights(checkpoint: Path, zero_stage: int) -> dict[str, Tensor]:
    """Returns the float32 parameters by their names in transformers."""
    if zero_stage == 3:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        state = get_fp32_state_dict_from_zero_checkpoint(str(checkpoint), tag=_TAG)
    else:
        # Up to stage 2 every rank has all parameters, in float32, and rank 0 writes them.
        path = checkpoint / _TAG / "mp_rank_00_model_states.pt"
        state = torch.load(path, map_location="cpu", weights_only=False, mmap=True)["module"]
    return {name.removeprefix(_PREFIX): tensor for name, tensor in state.items() if name.startswith(_PREFIX)}


def _ordered(names: Mapping[str, object], weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name in names:
        yield name, weights[name]


if __name__ == "__main__":
    sys.exit(main())
