"""The disk space of a run: its checkpoints, exported models, ledger and logs."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from services.coordinator.launcher.ledger_size import most_ledger_bytes
from services.coordinator.store.segments.series import SEGMENTS
from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import InvalidArgument, ResourceExhausted
from shoal.models.adapter_targets import num_adapter_weights
from shoal.models.layers_in_files import layers_in_files
from shoal.models.model_folder import model_config
from shoal.quantities import counted, format_bytes
from shoal.suggest.shape import model_shape

# Master weights and the two moments of Adam, all in float32.
_TRAINING_STATE_BYTES = 3 * 4
# DeepSpeed writes the weights once more at ZeRO stages 1 and 2.
_WHOLE_WEIGHTS_BYTES = {0: 0, 1: 4, 2: 4, 3: 0}
_REFERENCE_BYTES = 4
_LOGS_BYTES = 64 << 20


@dataclass(frozen=True)
class DiskUse:
    """The expected disk use of a run, from the number of its model's weights."""

    num_weights: int
    """Weights that are trained: those of the model, or of its adapters."""
    bytes_per_weight: int
    """In a checkpoint."""
    num_checkpoints: int
    """Those that are kept, one being written, and with a mirror one being copied."""
    why_checkpoints: str
    """How that number comes about."""
    export_bytes: int
    """The trained model and the exports of steps."""
    ledger_bytes: int = 0
    """The ledger if every text has the greatest length, less what a resumed run has written of it."""
    held_bytes: int = 0
    """Checkpoints of a resumed run that are on the disk already, as far as the run keeps them."""

    @property
    def checkpoint_bytes(self) -> int:
        """Size of one checkpoint."""
        return self.num_weights * self.bytes_per_weight

    @property
    def total_bytes(self) -> int:
        """Most bytes that the run takes at once, without its ledger."""
        return self.num_checkpoints * self.checkpoint_bytes + self.export_bytes + _LOGS_BYTES

    @property
    def missing_bytes(self) -> int:
        """Free space that the run needs, whatever the length of its texts."""
        return self.total_bytes - self.held_bytes

    def shortage(self, free: int) -> str:
        """Describes what does not fit into the free space; empty if everything does."""
        if free < self.missing_bytes:
            return "which is too little"
        if free < self.missing_bytes + self.ledger_bytes:
            return "which is too little if the completions become long"
        return ""

    def __str__(self) -> str:
        """Describes the sizes and where they come from."""
        held = f", of which {format_bytes(self.held_bytes)} are on the disk already" if self.held_bytes else ""
        return (
            f"a checkpoint takes about {format_bytes(self.checkpoint_bytes)} ({self.bytes_per_weight} bytes a weight: "
            f"float32 masters and Adam's moments); the run takes about {format_bytes(self.total_bytes)}: up to "
            f"{counted(self.num_checkpoints, 'checkpoint')} ({self.why_checkpoints}) and "
            f"{format_bytes(self.export_bytes)} of exported models{held}; its ledger "
            f"takes up to {format_bytes(self.ledger_bytes)}, if every text has the greatest length"
        )


def expected_disk_use(model_folder: Path, config: RunConfig, run_folder: Path | None = None) -> DiskUse:
    """Computes the disk use of a run from the weight files of its model, and what a resumed run has written of it."""
    element_bytes = 4 if model_config(model_folder).dtype == "float32" else 2
    weight_bytes = sum(path.stat().st_size for path in model_folder.glob("*.safetensors"))
    reference_bytes = _REFERENCE_BYTES if config.kl.needs_reference and config.kl.reference_update_steps else 0
    others = _other_checkpoints(config)
    stage = config.learner.stage_on(config.launch.num_learner_ranks)
    use = DiskUse(
        num_weights=_num_trained(config, model_folder, weight_bytes // element_bytes),
        bytes_per_weight=_TRAINING_STATE_BYTES + _WHOLE_WEIGHTS_BYTES[stage] + reference_bytes,
        num_checkpoints=config.checkpoint.keep_last + 1 + len(others),
        why_checkpoints=", and ".join(["checkpoint.keep_last + 1", *others]),
        export_bytes=weight_bytes * (1 + _most_exports(config)),
        ledger_bytes=most_ledger_bytes(config),
    )
    if run_folder is None:
        return use
    # Old checkpoints are deleted, and an old export replaced, only once the new one is written.
    written = sum(path.stat().st_size for path in (run_folder / "checkpoints").rglob("*") if path.is_file())
    of_ledger = (*run_folder.glob("ledger*.sqlite"), *(run_folder / SEGMENTS).glob("*.segment"))
    ledger = sum(path.stat().st_size for path in of_ledger)
    return replace(
        use,
        held_bytes=min(written, config.checkpoint.keep_last * use.checkpoint_bytes),
        ledger_bytes=max(0, use.ledger_bytes - ledger),
    )


def _other_checkpoints(config: RunConfig) -> list[str]:
    """Names the checkpoints that may exist besides the last ones and the one being written."""
    settings = config.checkpoint
    return ["the best one"] * bool(settings.best_metric) + ["one being mirrored"] * bool(settings.mirror)


def _num_trained(config: RunConfig, model_folder: Path, num_weights: int) -> int:
    if not config.learner.lora.is_on:
        return num_weights
    try:
        layers = layers_in_files(model_folder) or model_shape(str(model_folder)).linear_layers
        return num_adapter_weights(config.learner.lora, layers)
    except InvalidArgument:  # A model of unknown sizes: rather too much than too little.
        return num_weights


def _most_exports(config: RunConfig) -> int:
    """Returns the most exports on the disk at once: those that are kept, and one being written."""
    settings = config.checkpoint
    if not settings.export_every_steps:
        return 0
    all_steps = config.run.num_steps // settings.export_every_steps
    if not settings.export_keep_last:
        return all_steps
    return min(all_steps, settings.export_keep_last + bool(settings.export_best_metric) + 1)


def free_bytes(folder: Path) -> int:
    """Returns the free space on the disk of a folder, which need not exist yet."""
    folder = folder.absolute()
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def check_disk(data_dir: Path, use: DiskUse) -> None:
    """Raises `ResourceExhausted` when the checkpoints and the exported models cannot fit.

    A ledger that may not fit is none: completions are seldom as long as they may be.
    """
    free = free_bytes(data_dir)
    if free < use.missing_bytes:
        raise ResourceExhausted(
            f"--data-dir: the disk of {data_dir} has {format_bytes(free)} free, and that is too little: {use}; make "
            "room, lower checkpoint.keep_last, or choose another --data-dir",
            reason=ErrorReason.DISK_FULL,
        )
