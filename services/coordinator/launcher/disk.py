"""Comparison of a run's free disk space with the size of its checkpoints."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import InvalidArgument, ResourceExhausted
from shoal.models.adapter_targets import num_adapter_weights
from shoal.models.layers_in_files import layers_in_files
from shoal.models.model_folder import model_config
from shoal.quantities import format_bytes
from shoal.suggest.shape import model_shape

# Master weights and the two moments of Adam, all in float32.
_TRAINING_STATE_BYTES = 3 * 4
# At ZeRO stages 1 and 2 DeepSpeed writes the weights twice.
_WHOLE_WEIGHTS_BYTES = {0: 0, 1: 4, 2: 4, 3: 0}
_REFERENCE_BYTES = 4


@dataclass(frozen=True)
class DiskSpace:
    """The free space of a run's disk, and the expected size of a checkpoint of the run."""

    data_dir: Path
    free_bytes: int
    checkpoint_bytes: int

    @property
    def is_short(self) -> bool:
        """Whether the disk has no room for two checkpoints.

        A new checkpoint is written before the oldest is deleted.
        """
        return self.free_bytes < 2 * self.checkpoint_bytes

    def __str__(self) -> str:
        """Describes both sizes, and whether the space is too small for a second checkpoint."""
        shortage = ", which is too little for two of them: a new one is written before the oldest is deleted"
        return (
            f"a checkpoint takes about {format_bytes(self.checkpoint_bytes)}; {format_bytes(self.free_bytes)} are free "
            f"in {self.data_dir}{shortage if self.is_short else ''}"
        )


def disk_space(data_dir: Path, model_folder: Path, config: RunConfig) -> DiskSpace:
    """Measures the free space for the runs of a folder, which need not exist yet, and computes the size of a checkpoint
    from the weight files of its model."""
    folder = data_dir.absolute()
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    reference_bytes = _REFERENCE_BYTES if config.kl.needs_reference and config.kl.reference_update_steps else 0
    stage = config.learner.stage_on(config.launch.num_learner_ranks)
    bytes_per_weight = _TRAINING_STATE_BYTES + _WHOLE_WEIGHTS_BYTES[stage] + reference_bytes
    return DiskSpace(data_dir, free, _num_trained(config, model_folder) * bytes_per_weight)


def check_disk(space: DiskSpace) -> None:
    """Raises `ResourceExhausted` when one checkpoint cannot fit."""
    if space.free_bytes < space.checkpoint_bytes:
        raise ResourceExhausted(
            f"--data-dir: the disk is too small: {space}; make room, or choose another --data-dir",
            reason=ErrorReason.DISK_FULL,
        )


def _num_trained(config: RunConfig, model_folder: Path) -> int:
    """Returns the number of weights that are trained: the weights of the model, or of its adapters."""
    element_bytes = 4 if model_config(model_folder).dtype == "float32" else 2
    num_weights = sum(path.stat().st_size for path in model_folder.glob("*.safetensors")) // element_bytes
    if not config.learner.lora.is_on:
        return num_weights
    try:
        layers = layers_in_files(model_folder) or model_shape(str(model_folder)).linear_layers
        return num_adapter_weights(config.learner.lora, layers)
    except InvalidArgument:  # The sizes of the model are unknown: assume too much rather than too little.
        return num_weights
