"""Checkpoints of the learner: every rank writes its shards; a restore verifies all files first.

`<data_dir>/<run_id>/checkpoints/<checkpoint_id>/learner` contains DeepSpeed's files, `learner.json` and, if the
reference follows the policy, the reference's weights in `reference/`. The folder does not contain frozen weights, which
are in the model's files. There is no other state: the learning rate and the seed of the adapters' dropout are functions
of the number of optimizer steps, and there is no other dropout.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from services.learner.engine.deepspeed_engine import DeepSpeedEngine
from services.learner.engine.reference import Reference, ReferenceModel
from services.learner.ranks.process_group import ProcessGroup
from services.learner.storage.atomic_folder import (
    discard_folder,
    partial_of,
    sha256_of,
    start_folder,
    storage_error,
    storage_errors,
)
from services.learner.storage.export import write_weights
from services.learner.storage.universal_checkpoint import discard_universal_form, universal_form
from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, FailedPrecondition, NotFound, ShoalError
from shoal.rollout import WeightVersion
from shoal.worker.lifecycle import Progress, silent

LEARNER_FOLDER = "learner"
"""The folder of the learner's part of a checkpoint."""
SUMMARY = "learner.json"
"""The file with the learner's state other than tensors."""
_REFERENCE = "reference"


@dataclass(frozen=True)
class FileDigest:
    """A file of a checkpoint."""

    path: str
    """The path, relative to the checkpoint's `learner` folder."""
    num_bytes: int
    sha256: str


class LearnerState(Protocol):
    """The attributes of `Learner` that a checkpoint contains, or that are needed to write and read a checkpoint.

    The class is a protocol, since this module must not import services/learner/learner.py, which is a layer above.
    """

    config: RunConfig
    process_group: ProcessGroup
    engine: DeepSpeedEngine
    reference: Reference | None
    version: WeightVersion
    num_optimizer_steps: int
    kl_coef: float

    @property
    def export_dtype(self) -> str:
        """The type in which the policy is exported."""


def write_checkpoint(learner: LearnerState, checkpoints: Path, name: str, progress: Progress = silent) -> list[Path]:
    """Writes the state of a learner into the partial folder of a checkpoint. Call this function on all ranks.

    Returns the files that this rank wrote; these files need not be on disk yet, and `CheckpointFinisher` completes the
    checkpoint. The learner may change afterwards. Raises, on every rank alike, `ResourceExhausted` when the disk is
    full and `FailedPrecondition` when the folder cannot be written; in these cases no part of the checkpoint remains.
    """
    process_group = learner.process_group
    folder = checkpoints / name / LEARNER_FOLDER
    partial = partial_of(folder)
    mine: list[Path] = []
    try:
        with process_group.raising_on_all(), storage_errors(folder):
            if process_group.rank == 0:
                start_folder(folder).joinpath(SUMMARY).write_text(json.dumps(_summary(learner)))
                mine.append(partial / SUMMARY)
        progress("writing weights and optimizer")
        error = learner.engine.save(partial)
        mine += learner.engine.saved_files
        process_group.raise_on_all(None if error is None else storage_error(error, folder))
        if (reference := moving_reference(learner)) is not None:
            progress("writing the reference")
            tensors = reference.full_parameters()
            error = write_weights(partial / _REFERENCE, learner.engine.shapes, tensors, process_group)
            if process_group.rank == 0:
                mine += sorted((partial / _REFERENCE).glob("*"))
            process_group.raise_on_all(None if error is None else storage_error(error, folder))
    except ShoalError:
        if process_group.rank == 0:
            discard_folder(folder)
        raise
    return mine


def is_there(checkpoints: Path, name: str, files: Iterable[FileDigest]) -> bool:
    """Returns whether the files of a checkpoint exist and have the right sizes. Reads none of them."""
    try:
        return all((checkpoints / name / LEARNER_FOLDER / file.path).stat().st_size == file.num_bytes for file in files)
    except OSError:
        return False


def written_stage(checkpoints: Path, name: str, files: Sequence[FileDigest]) -> int:
    """Returns the ZeRO stage that wrote a checkpoint. Raises `NotFound`, or `DataLoss` if the summary is damaged."""
    return int(_verified_summary(checkpoints / name / LEARNER_FOLDER, files, name)["zero_stage"])


def load_checkpoint(
    learner: LearnerState,
    checkpoints: Path,
    name: str,
    *,
    files: Sequence[FileDigest],
    attempt: int,
    progress: Progress = silent,
) -> None:
    """Restores a checkpoint and begins an attempt. Call this function on all ranks.

    A checkpoint that was written by another number of ranks is converted first. Raises, on every rank alike and before
    anything changes, `NotFound`, `DataLoss` if one of `files` is missing or differs, `FailedPrecondition` if another
    ZeRO stage wrote the checkpoint, and the errors of `universal_form`.
    """
    process_group = learner.process_group
    folder = checkpoints / name / LEARNER_FOLDER
    with process_group.raising_on_all():
        summary = _verified_summary(folder, files, name)
        if process_group.rank == 0:
            discard_universal_form(folder.parent)
        _check_fits(summary, learner, name)
        progress("verifying the digests of the checkpoint's files")
        for file in files[process_group.rank :: process_group.size]:
            verify(folder, file)
    if learner.engine.zero_stage and summary["num_ranks"] != process_group.size:
        progress(f"converting the state from {summary['num_ranks']} to {process_group.size} ranks")
        with universal_form(folder.parent, folder, process_group) as universal:
            progress("reading weights and optimizer")
            learner.engine.load(universal, is_universal=True)
    else:
        progress("reading weights and optimizer")
        learner.engine.load(folder)
    if (reference := moving_reference(learner)) is not None:
        reference.load(sorted((folder / _REFERENCE).glob("*.safetensors")))
    learner.version = WeightVersion(attempt, summary["policy_version"])
    learner.num_optimizer_steps = summary["num_optimizer_steps"]
    if learner.config.kl.target is not None:  # Else the configured coefficient counts, which a resume may have changed.
        learner.kl_coef = summary.get("kl_coef", learner.kl_coef)


def moving_reference(learner: LearnerState) -> ReferenceModel | None:
    """Returns the reference if it follows the policy. A fixed reference, the configured model, needs no checkpoint."""
    follows = learner.config.kl.reference_update_steps is not None
    return learner.reference if follows and isinstance(learner.reference, ReferenceModel) else None


def _summary(learner: LearnerState) -> dict[str, Any]:
    return {
        "num_ranks": learner.process_group.size,
        "zero_stage": learner.engine.zero_stage,
        "has_reference": moving_reference(learner) is not None,
        "attempt": learner.version.attempt,
        "policy_version": learner.version.policy_version,
        "export_dtype": learner.export_dtype,
        "num_optimizer_steps": learner.num_optimizer_steps,
        "kl_coef": learner.kl_coef,
    }


def _verified_summary(folder: Path, files: Sequence[FileDigest], name: str) -> dict[str, Any]:
    if not folder.is_dir():
        raise NotFound(
            f"checkpoint {name} was not found: {folder} does not exist; check the learner's --data-dir",
            reason=ErrorReason.NO_SUCH_CHECKPOINT,
        )
    of_summary = [file for file in files if file.path == SUMMARY]
    if not of_summary:
        raise _damaged(f"the manifest of checkpoint {name} does not list the file {SUMMARY}")
    verify(folder, of_summary[0])
    try:
        summary = json.loads((folder / SUMMARY).read_text())
    except (OSError, ValueError) as error:
        raise _damaged(f"{folder / SUMMARY} cannot be read: {error}") from error
    assert isinstance(summary, dict)
    return summary


def _check_fits(summary: dict[str, Any], learner: LearnerState, name: str) -> None:
    here = {"zero_stage": learner.engine.zero_stage, "has_reference": moving_reference(learner) is not None}
    cures = {"zero_stage": "learner.zero_stage", "has_reference": "kl.coef, kl.reference and kl.reference_update_steps"}
    for field, value in here.items():
        if (written := summary.get(field, False)) != value:
            raise FailedPrecondition(
                f"checkpoint {name} was written with {field} = {written}, but this learner has {field} = {value}: "
                f"set {cures[field]} as in the run that wrote the checkpoint",
                reason=ErrorReason.OTHER_SHARDING,
                metadata={field: str(summary[field])},
            )


def verify(folder: Path, file: FileDigest) -> None:
    """Raises `DataLoss` when a file is missing from a checkpoint's folder, or differs from its digest."""
    path = folder / file.path
    if not path.resolve().is_relative_to(folder.resolve()):
        raise _damaged(f"the manifest lists {file.path}, which is outside the checkpoint's folder {folder}")
    try:
        found = sha256_of(path)
    except OSError as error:
        raise _damaged(f"{path} is missing or cannot be read: {error.strerror}") from error
    if found != file.sha256:
        raise _damaged(f"{path} is damaged: its SHA-256 is {found}, but the manifest has {file.sha256}")


def _damaged(message: str) -> DataLoss:
    return DataLoss(message, reason=ErrorReason.CHECKPOINT_DAMAGED)
